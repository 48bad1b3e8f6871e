"""Works, commands and workspaces in the console: what is wanted is written, what runs is seen and stopped."""

from __future__ import annotations

from playwright.sync_api import Locator, expect

from .conftest import Open, picture


def test_live_output_of_a_command_is_shown_as_it_comes_and_the_command_is_stopped(open_console: Open) -> None:
    with open_console(approvals="off") as console:
        page = console.signed_in(viewport={"width": 1100, "height": 760})
        line = 'for n in 1 2 3; do echo step $n; done; read word; echo "heard $word \x1b[31m<b>"; exec sleep 1000'
        run = console.call(
            "exec_command", workspace_id="main", command=["sh", "-c", line], open_stdin=True, wait_seconds=0
        )
        page.get_by_role("link", name="Processes").click()
        page.locator(f'[data-key="{run["process_id"]}"] a').click()
        expect(page.locator("#output")).to_contain_text("step 3")
        console.call("write_stdin", process_id=run["process_id"], data="hello\n")
        expect(page.locator("#output")).to_contain_text("heard hello ⟨ESC⟩[31m<b>")
        picture(page, "console-process")
        page.get_by_role("button", name="Stop").click()
        expect(page.locator(".status .state")).to_have_text("exited")
        expect(page.get_by_role("button", name="Stop")).to_be_disabled()
        expect(page.locator("#output")).to_have_text(
            page.locator("#output").inner_text()
        )  # what was streamed is not shown twice
        assert console.call("process_status", process_id=run["process_id"])["state"] == "exited"
        assert console.told == []


def press(button: Locator) -> None:
    """Press a button, and return once the whole of the page that it leads to is there."""
    button.click()
    button.page.wait_for_load_state()


def test_what_the_operator_writes_is_drafted_edited_queued_ordered_and_claimed(open_console: Open) -> None:
    with open_console(approvals="off") as console:
        work = console.call("work_open", workspace_id="main", title="Tidy <the> shop")["work_id"]
        page = console.signed_in(viewport={"width": 1100, "height": 760})
        page.get_by_role("link", name="Works", exact=True).click()
        page.locator(f'[data-key="{work}"] a').click()
        expect(page.get_by_role("heading", name="Tidy <the> shop")).to_be_visible()
        page.get_by_label("Text").fill("Rename the cart module.\nKeep its tests.")
        press(page.get_by_role("button", name="Save as a draft", exact=True))
        assert console.call("steer_status", work_id=work)["queued"] == 0
        page.get_by_label("Text").first.fill("Rename the cart module to basket.")
        press(page.get_by_role("button", name="Save", exact=True))
        expect(page.get_by_text("revision 2")).to_be_visible()
        press(page.get_by_role("button", name="Queue", exact=True))
        page.get_by_label("Text").last.fill("First, say what you plan.")
        press(page.get_by_role("button", name="Queue it", exact=True))
        picture(page, "console-work")
        press(page.get_by_role("button", name="First", exact=True).last)
        expect(page.get_by_label("Text").first).to_have_value("First, say what you plan.")
        claimed = console.call("steer_claim_next", work_id=work)["intent"]
        assert claimed["text"] == "First, say what you plan."
        page.reload()
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_text("cancelled")).to_be_visible()
        assert console.call("steer_status", work_id=work)["queued"] == 0


def test_an_edit_of_an_old_revision_is_refused_and_says_so(open_console: Open) -> None:
    with open_console(approvals="off") as console:
        work = console.call("work_open", workspace_id="main", title="t")["work_id"]
        first = console.signed_in()
        first.goto(f"{console.url}/works/{work}")
        first.get_by_label("Text").fill("one")
        first.get_by_role("button", name="Save as a draft").click()
        second = first.context.new_page()
        second.goto(f"{console.url}/works/{work}")
        first.get_by_label("Text").first.fill("two")
        first.get_by_role("button", name="Save", exact=True).click()
        expect(first.get_by_text("revision 2")).to_be_visible()
        second.get_by_label("Text").first.fill("three")
        second.get_by_role("button", name="Save", exact=True).click()
        expect(second.get_by_role("heading", name="INTENT_REVISION_CONFLICT")).to_be_visible()


def test_a_stop_ends_the_work_and_its_commands(open_console: Open) -> None:
    with open_console(approvals="off") as console:
        work = console.call("work_open", workspace_id="main", title="t")["work_id"]
        run = console.call("exec_command", workspace_id="main", command=["sleep", "1000"], work_id=work, wait_seconds=0)
        page = console.signed_in()
        page.goto(f"{console.url}/works/{work}")
        page.get_by_role("button", name="Stop the work").click()
        expect(page.locator(".decision .state")).to_have_text("closing")
        assert console.call("process_status", process_id=run["process_id"])["state"] == "exited"


def test_workspaces_show_what_is_in_force(open_console: Open) -> None:
    with open_console() as console:
        page = console.signed_in(viewport={"width": 1100, "height": 760})
        page.get_by_role("link", name="Workspaces").click()
        expect(page.get_by_text(str(console.root))).to_be_visible()
        said = console.call("workspace_info", workspace_id="main")["execution"]
        expect(page.get_by_text(said["isolation"]["command_sandbox"], exact=True)).to_be_visible()
        picture(page, "console-workspaces")
