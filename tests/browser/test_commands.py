"""Held commands and input in the console: all that is granted is shown, and what runs cannot reach the console."""

from __future__ import annotations

from playwright.sync_api import expect

from .conftest import Open
from .test_holds import open_hold


def test_a_held_command_is_shown_with_all_that_it_is_and_cannot_reach_the_console_when_it_runs(
    open_console: Open,
) -> None:
    with open_console(files={"notes.txt": "one\n"}) as console:
        page = console.signed_in(viewport={"width": 1100, "height": 900})
        line = f"cat notes.txt; (echo hello > /dev/tcp/127.0.0.1/{console.port}) 2>&1; ls {console.site.state}; exit 9"
        asked = {"command": ["bash", "-c", line, "<b>&"], "env": {"LEVEL": "\u202e3"}, "stdin": "words\n"}
        hold = console.held("exec_command", **asked)
        open_hold(page, hold)
        shown = page.locator("main")
        for wanted in ("bash", "-c", "<b>&", "Variable LEVEL", "\\u202e3", "words\\n", "600 s", "/bash", "sha256:"):
            expect(shown).to_contain_text(wanted)
        page.get_by_text("Grant more than this once").click()
        expect(page.get_by_label("this program with any arguments")).to_be_disabled()
        expect(page.get_by_label("this exact command")).to_be_enabled()
        page.get_by_role("button", name="Grant").click()
        expect(page.locator(".status .state")).to_have_text("granted")
        done = console.call("operation_resume", approval_id=hold)["exec_command"]
        assert (done["exit_code"], done["sandbox"]) == (9, "linux-sandbox")
        assert "one" in done["chunk"]
        assert "operations.sqlite" not in done["chunk"]
        assert "hello" not in console.agent.said
        expect(page.locator(".status .state")).to_have_text("consumed")
        page.goto(f"{console.url}/operations/{done['operation_id']}")
        expect(page.locator(".status .state")).to_have_text("exited")
        page.get_by_role("link", name="Its process and output").click()
        expect(page.locator("#output")).to_contain_text("refused")
        expect(page.locator(".status")).to_contain_text("exit code 9")


def test_held_input_is_shown_and_granted(open_console: Open) -> None:
    with open_console() as console:
        page = console.signed_in()
        hold = console.held("exec_command", command=["cat"], tty=True, wait_seconds=0)
        open_hold(page, hold)
        expect(page.get_by_text("a terminal")).to_be_visible()
        page.get_by_role("button", name="Grant").click()
        expect(page.locator(".status .state")).to_have_text("granted")
        process = console.call("operation_resume", approval_id=hold)["exec_command"]["process_id"]
        words = console.call_held("write_stdin", process_id=process, data="rm -r <everything>\n")
        page.goto(f"{console.url}/holds")
        open_hold(page, words)
        expect(page.locator("pre.output")).to_contain_text("rm -r <everything>")
        page.get_by_role("button", name="Deny").click()
        expect(page.locator(".status .state")).to_have_text("denied")
        assert "everything" not in console.call("read_process", process_id=process)["chunk"]
        console.call("terminate_process", process_id=process)


def test_a_command_that_writes_without_end_cannot_keep_the_operator_from_stopping_it(open_console: Open) -> None:
    with open_console(approvals="off") as console:
        page = console.signed_in()
        endless = ["sh", "-c", "echo first; yes writing | head -c 8000000; echo last; exec sleep 1000"]
        ran = console.call("exec_command", workspace_id="main", command=endless, wait_seconds=0)
        page.goto(f"{console.url}/processes/{ran['process_id']}")
        expect(page.locator("#output")).to_contain_text("last\n")
        assert page.evaluate("document.getElementById('output').textContent.length") == 300_000
        expect(page.get_by_text("load the page again for its beginning")).to_be_visible()
        reloaded = page.reload()
        assert reloaded is not None
        assert "first\nwriting" in reloaded.text()  # as it was served: what streams in soon pushes that out again
        page.get_by_role("button", name="Stop").click()
        expect(page.locator(".status .state")).to_have_text("exited")
        assert console.told == []
