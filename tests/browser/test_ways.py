"""The console by keyboard, on a phone, in the dark, and without JavaScript."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from .conftest import Open, picture
from .test_holds import FILES, PATCH, open_hold, resumed

PAGES = ("holds", "operations", "processes", "works", "grants", "workspaces")


def test_everything_is_reached_and_granted_by_keyboard_alone(open_console: Open) -> None:
    with open_console(files=FILES) as console:
        hold = console.held("apply_patch", patch=PATCH)
        page = console.stranger()
        page.goto(console.link())
        expect(page.get_by_role("button", name="Sign in to this console")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Held")).to_be_visible()
        tab_to(page, f"/console/holds/{hold}")
        page.keyboard.press("Enter")
        expect(page.locator("pre.diff")).to_be_visible()
        tab_to(page, "Grant")
        page.keyboard.press("Enter")
        expect(page.locator(".status .state")).to_have_text("granted")
        resumed(console, hold)


def tab_to(page: Page, wanted: str) -> None:
    """Press Tab until the focused link or button is the wanted one."""
    for _ in range(40):
        page.keyboard.press("Tab")
        focused = "(() => { const e = document.activeElement; return e.getAttribute('href') || e.textContent; })()"
        if page.evaluate(focused) == wanted:
            return
    pytest.fail(f"{wanted} is not reached by Tab")


def test_without_javascript_a_person_signs_in_reads_grants_and_pages(open_console: Open) -> None:
    with open_console(files=FILES) as console:
        page = console.signed_in(java_script_enabled=False)
        hold = console.held("apply_patch", patch=PATCH)
        page.reload()
        open_hold(page, hold)
        expect(page.locator("pre.diff")).to_contain_text("item.count")
        page.get_by_role("button", name="Grant").click()
        expect(page.locator(".status .state")).to_have_text("granted")
        resumed(console, hold)
        page.reload()
        expect(page.locator(".status .state")).to_have_text("consumed")
        for name in PAGES:
            page.goto(f"{console.url}/{name}")
            expect(page.get_by_role("heading", level=1)).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_at_phone_width_nothing_is_wider_than_the_screen_and_buttons_are_for_thumbs(
    open_console: Open, scheme: str
) -> None:
    with open_console(files=FILES) as console:
        hold = console.held("apply_patch", patch=PATCH)
        page = console.signed_in(viewport={"width": 360, "height": 740}, color_scheme=scheme)
        for path in (*PAGES, f"holds/{hold}"):
            page.goto(f"{console.url}/{path}")
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
        expect(page.get_by_role("button", name="Grant")).to_be_in_viewport()
        box = page.get_by_role("button", name="Grant").bounding_box()
        assert box is not None
        assert box["height"] >= 44
        picture(page, f"console-phone-{scheme}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(open_console: Open, scheme: str) -> None:
    with open_console(files=FILES) as console:
        hold = console.held("apply_patch", patch=PATCH)
        page = console.signed_in(color_scheme=scheme)
        page.goto(f"{console.url}/holds/{hold}")
        weak = page.evaluate(_CONTRAST)
        assert weak == []


_CONTRAST = """() => {
  const parts = (colour) => colour.match(/[0-9.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
    .reduce((sum, c, at) => sum + c * [.2126, .7152, .0722][at], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parts(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return light(colour);
    }
    return 1;
  };
  const weak = [];
  for (const element of document.querySelectorAll("body *")) {
    if (element.closest(":disabled") || !element.checkVisibility()) continue;
    if (![...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
    const [a, b] = [light(parts(getComputedStyle(element).color)), behind(element)];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) weak.push(`${element.tagName} ${element.textContent.trim().slice(0, 30)} ${ratio.toFixed(2)}`);
  }
  return weak;
}"""
