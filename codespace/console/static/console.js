"use strict";
// Keeps what is shown up to date. Without it every page still works: reload shows what is new.
// It never moves or replaces what may be under the pointer: new rows come behind the old ones, rows that are
// gone stay in their place until the next visit, and buttons are only ever disabled.
(() => {
  const lives = () => document.querySelectorAll("[data-live]");
  const news = document.getElementById("news");
  let source = null;
  let refreshing = false;
  let again = false;

  function mergeRows(list, fresh) {
    const rows = new Map([...fresh.querySelectorAll("[data-key]")].map((row) => [row.dataset.key, row]));
    for (const row of list.querySelectorAll("[data-key]")) {
      const next = rows.get(row.dataset.key);
      rows.delete(row.dataset.key);
      if (!next) {
        row.classList.add("gone");
      } else {
        const state = row.querySelector(".state");
        const wanted = next.querySelector(".state");
        if (state && wanted && state.textContent !== wanted.textContent) {
          state.textContent = wanted.textContent;
          state.className = wanted.className;
        }
      }
    }
    for (const row of rows.values()) list.append(document.importNode(row, true));
    const empty = document.querySelector("p.empty");
    if (empty && list.children.length) empty.hidden = true;
  }

  function mergeButtons(page) {
    const now = document.querySelectorAll("#decide > button");
    const next = page.querySelectorAll("#decide > button");
    now.forEach((button, at) => {
      // Enabling, renaming or adding one is for the next visit: nobody shall press what was something else before.
      const same = next[at] && next[at].textContent === button.textContent;
      if (!same || next[at].disabled) button.disabled = true;
    });
  }

  async function refresh() {
    if (refreshing) { again = true; return; }
    refreshing = true;
    try {
      const answer = await fetch(location.href, { credentials: "same-origin", cache: "no-store" });
      if (answer.status === 401) { location.assign("/console/sign-in"); return; }
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const live of lives()) {
        const fresh = page.querySelector(`[data-live="${live.dataset.live}"]`);
        if (!fresh) continue;
        if (live.matches("ul")) mergeRows(live, fresh);
        else if (live.textContent.trim() !== fresh.textContent.trim()) {
          live.replaceChildren(...document.importNode(fresh, true).childNodes);
          mergeButtons(page);
        }
      }
    } catch { /* the daemon is away; the next event tries again */ } finally {
      refreshing = false;
      if (again) { again = false; refresh(); }
    }
  }

  function listen() {
    if (source || document.hidden) return;
    source = new EventSource("/console/events");
    let first = true;
    source.onmessage = (event) => {
      const told = JSON.parse(event.data);
      document.getElementById("pending").textContent = told.pending;
      if (lives().length) refresh();
      else if (!first && news) news.hidden = false;
      first = false;
    };
  }

  // A hidden tab keeps no connection: a browser has only a handful of them for one host.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { source?.close(); source = null; } else listen();
  });
  addEventListener("pagehide", () => { source?.close(); source = null; });
  addEventListener("pageshow", listen);
  listen();

  // Characters that a page of output holds: with tens of millions it is so slow that nobody could press Stop.
  const MOST = 300000;
  const output = document.querySelector("[data-stream]");

  function show(text) {
    output.append(text);
    let over = output.textContent.length - MOST;
    if (over > 0) document.getElementById("earlier").hidden = false;
    while (over > 0) {
      const first = output.firstChild;
      const gone = Math.min(over, first.length);
      if (gone === first.length) first.remove(); else first.deleteData(0, gone);
      over -= gone;
    }
  }

  if (output) {
    const stream = new EventSource(output.dataset.stream);
    stream.onmessage = (event) => {
      const told = JSON.parse(event.data);
      if (told.text) show(told.text);
      if (told.eof) { stream.close(); refresh(); }
    };
    // A broken stream would begin again where this page began, and show things twice.
    stream.onerror = () => stream.close();
    addEventListener("pagehide", () => stream.close());
  }
})();
