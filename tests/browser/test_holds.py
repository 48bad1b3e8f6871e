"""The operator decides in a real browser: what is held arrives, is read, and runs only after a grant."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from codespace.errors import Refusal
from codespace.testing.site import tree

from .conftest import Console, Open, picture

FILES = {
    "shop/cart.py": "def total(items):\n    return sum(item.price for item in items)\n\n\ndef empty(cart):\n"
    "    cart.items = []\n"
}
PATCH = """*** Begin Patch
*** Update File: shop/cart.py
@@
 def total(items):
-    return sum(item.price for item in items)
+    return sum(item.price * item.count for item in items)
*** Add File: shop/discount.py
+def discount(total, percent):
+    return total * (100 - percent) / 100
*** End Patch
"""
AFTER = b"    return sum(item.price * item.count for item in items)\n"


def add(path: str, text: str = "x") -> str:
    return f"*** Begin Patch\n*** Add File: {path}\n+{text}\n*** End Patch\n"


def open_hold(page: Page, approval_id: str) -> None:
    page.locator(f'[data-key="{approval_id}"] a').click()
    expect(page.get_by_role("button", name="Grant")).to_be_enabled()
    page.wait_for_load_state()  # all of it, and as it is laid out


def resumed(console: Console, approval_id: str) -> str:
    """Resume as the agent; return the operation."""
    done = console.call("operation_resume", approval_id=approval_id)
    (result,) = (value for name, value in done.items() if name in ("apply_patch", "operation_undo"))
    assert result["status"] == "applied"
    return str(result["operation_id"])


def test_a_held_patch_arrives_live_is_read_granted_and_applied(open_console: Open) -> None:
    with open_console(files=FILES) as console:
        page = console.signed_in(viewport={"width": 1100, "height": 760})
        expect(page.locator("#pending")).to_have_text("0")
        hold = console.held("apply_patch", patch=PATCH)
        row = page.locator(f'[data-key="{hold}"]')
        expect(row).to_contain_text("shop/cart.py")
        expect(page.locator("#pending")).to_have_text("1")
        console.held("apply_patch", patch=add("notes/todo.txt"))
        expect(page.locator("#pending")).to_have_text("2")
        picture(page, "console-held")
        open_hold(page, hold)
        expect(page.locator("pre.diff")).to_contain_text("+    return sum(item.price * item.count for item in items)")
        expect(page.locator("pre.diff")).to_contain_text("-    return sum(item.price for item in items)")
        picture(page, "console-hold")
        assert AFTER not in tree(console.root)["shop/cart.py"]
        page.get_by_role("button", name="Grant").click()
        expect(page.locator(".status .state")).to_have_text("granted")
        resumed(console, hold)
        assert AFTER in tree(console.root)["shop/cart.py"]
        expect(page.locator(".status .state")).to_have_text("consumed")  # live
        assert console.told == []
        assert console.asked == {f"codespace.localhost:{console.port}", ""}


def test_a_denied_patch_is_told_to_the_agent_and_never_runs(open_console: Open) -> None:
    with open_console(files=FILES) as console:
        page = console.signed_in()
        hold = console.held("apply_patch", patch=PATCH)
        open_hold(page, hold)
        page.get_by_role("button", name="Deny").click()
        expect(page.locator(".status .state")).to_have_text("denied")
        for name in ("Grant", "Deny"):
            expect(page.get_by_role("button", name=name)).to_be_disabled()
        with pytest.raises(Refusal) as caught:
            console.call("operation_resume", approval_id=hold)
        assert caught.value.code == "UNAUTHORIZED"
        expect(page.get_by_role("heading", name="Diff")).to_have_count(0)
        assert set(tree(console.root)) == {"shop/cart.py"}


def test_a_hold_that_waited_too_long_says_so_on_the_open_page_and_its_buttons_are_dead(open_console: Open) -> None:
    with open_console(files=FILES, approval_expiry_seconds=8) as console:
        page = console.signed_in()
        open_hold(page, console.held("apply_patch", patch=PATCH))
        expect(page.locator(".status")).to_contain_text("expired")
        expect(page.get_by_role("button", name="Grant")).to_be_disabled()


def test_a_grant_is_taken_back_while_it_is_not_used(open_console: Open) -> None:
    with open_console(files=FILES) as console:
        page = console.signed_in()
        hold = console.held("apply_patch", patch=PATCH)
        open_hold(page, hold)
        page.get_by_role("button", name="Grant").click()
        page.get_by_role("button", name="Take back").click()
        expect(page.locator(".status .state")).to_have_text("denied")
        assert console.state(hold) == "denied"


def test_a_new_hold_moves_no_button(open_console: Open) -> None:
    with open_console(files=FILES) as console:
        page = console.signed_in()
        first = console.held("apply_patch", patch=PATCH)
        row = page.locator(f'[data-key="{first}"]')
        expect(row).to_be_visible()
        place = row.bounding_box()
        second = console.held("apply_patch", patch=add("b.txt"))
        expect(page.locator(f'[data-key="{second}"]')).to_be_visible()
        assert row.bounding_box() == place
        open_hold(page, first)
        buttons = page.locator("#decide > button").all()
        places = [button.bounding_box() for button in buttons]
        console.held("apply_patch", patch=add("c.txt"))
        expect(page.locator("#pending")).to_have_text("3")
        assert [button.bounding_box() for button in buttons] == places
        console.call("approval_status", approval_id=second)


def test_an_undo_is_shown_as_a_diff_granted_and_run(open_console: Open) -> None:
    with open_console(files=FILES) as console:
        page = console.signed_in(viewport={"width": 1100, "height": 760})
        before = tree(console.root)
        hold = console.held("apply_patch", patch=PATCH)
        open_hold(page, hold)
        page.get_by_role("button", name="Grant").click()
        expect(page.locator(".status .state")).to_have_text("granted")
        operation = resumed(console, hold)
        assert tree(console.root) != before
        page.goto(f"{console.url}/operations")
        page.locator(f'a[href$="{operation}"]').click()
        expect(page.locator("pre.diff")).to_contain_text("+def discount(total, percent):")
        picture(page, "console-operation")
        page.get_by_role("button", name="Undo").click()
        expect(page.locator("pre.diff")).to_contain_text("-def discount(total, percent):")
        page.get_by_role("button", name="Grant").click()
        page.get_by_role("button", name="Undo it now").click()
        expect(page.locator(".status .state")).to_have_text("applied")
        assert tree(console.root) == before


def test_more_than_once_is_granted_listed_used_and_revoked(open_console: Open) -> None:
    with open_console(files=FILES) as console:
        page = console.signed_in(viewport={"width": 1100, "height": 760})
        hold = console.held("apply_patch", patch=PATCH)
        open_hold(page, hold)
        page.get_by_text("Grant more than this once").click()
        page.get_by_label("patches that touch nothing").check()
        page.get_by_role("textbox", name="Path").fill("shop")
        page.get_by_role("combobox", name="For").select_option("3600")
        page.get_by_role("button", name="Grant").click()
        expect(page.locator(".status .state")).to_have_text("granted")
        assert console.call("apply_patch", workspace_id="main", patch=add("shop/a.py"))["status"] == "applied"
        console.held("apply_patch", patch=add("other/a.py"))
        page.get_by_role("link", name="Grants").click()
        expect(page.get_by_text("patches under shop")).to_be_visible()
        expect(page.get_by_text("used once")).to_be_visible()
        picture(page, "console-grants")
        page.get_by_role("button", name="Revoke").click()
        expect(page.locator(".state")).to_have_text("revoked")
        console.held("apply_patch", patch=add("shop/b.py"))


def test_a_long_diff_is_paged_and_no_line_is_left_out(open_console: Open) -> None:
    with open_console() as console:
        page = console.signed_in()
        lines = "".join(f"+line number {number}\n" for number in range(1000))
        hold = console.held("apply_patch", patch=f"*** Begin Patch\n*** Add File: long.txt\n{lines}*** End Patch\n")
        open_hold(page, hold)
        seen = page.locator("pre.diff").inner_text()
        while page.get_by_role("link", name="Next page").count():
            page.get_by_role("link", name="Next page").first.click()
            page.wait_for_load_state()
            expect(page.get_by_role("button", name="Grant")).to_be_enabled()
            seen += page.locator("pre.diff").inner_text()
        assert re.findall(r"line number (\d+)", seen) == [str(number) for number in range(1000)]


def test_hostile_text_is_shown_and_acts_on_no_page(open_console: Open) -> None:
    with open_console() as console:
        page = console.signed_in()
        page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
        hostile = "<img src=x onerror=alert(1)><script>alert(2)</script>\u202eevil\x1b[2J"
        hold = console.held("apply_patch", patch=add("a<b>&'\".txt", hostile))
        expect(page.locator(f'[data-key="{hold}"]')).to_contain_text("a<b>&'\".txt")
        open_hold(page, hold)
        expect(page.locator("pre.diff")).to_contain_text("<script>alert(2)</script>⟨U+202E⟩evil⟨ESC⟩[2J")
        expect(page.locator("main img, main script")).to_have_count(0)
        assert console.told == []
