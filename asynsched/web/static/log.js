/* A log: its end first, earlier parts when one scrolls up, and what is appended while its try runs. */
"use strict";
const MOST_PARTS = 40; // in the document at once: with about 256 kB each, a browser stays quick
const MOST_TEXT = 200000; // characters of a part that grows: a browser lays out only parts that are near
const NEAR = 400; // pixels from an edge at which the next part is fetched
const LONGEST_PAUSE = 60000; // milliseconds until the next attempt to follow

// The parts in the document are those from `start` to `end`, without a gap; the log has `size` bytes, as far as known.
// What is appended is followed while the document has the end of the log, and is seen.

function followed(log) {
  let start = Number(log.dataset.start), end = Number(log.dataset.end), size = Number(log.dataset.size);
  let isBusy = false, isOver = !("isLive" in log.dataset), source = null, pause = 2000;
  const state = document.querySelector(".log-state");
  const fromEnd = () => log.scrollHeight - log.scrollTop - log.clientHeight;

  async function part(query) {
    // A part; null if it cannot be had now.
    try {
      const answer = await fetch(`${log.dataset.log}&${query}`);
      if (!answer.ok) return null;
      const number = (name) => Number(answer.headers.get(name));
      return { text: await answer.text(), start: number("X-Start"), end: number("X-End"), size: number("X-Size") };
    } catch { return null; }
  }

  function made(found) {
    const pre = document.createElement("pre");
    pre.textContent = found.text;
    pre.dataset.start = found.start;
    pre.dataset.end = found.end;
    return pre;
  }

  function trimmedAbove() {
    const [first, second] = log.querySelectorAll("pre");
    if (log.querySelectorAll("pre").length <= MOST_PARTS) return;
    const height = log.scrollHeight, place = log.scrollTop;
    start = Number(second.dataset.start);
    first.remove();
    log.scrollTop = place - (height - log.scrollHeight);
  }

  async function earlier() {
    const found = await part(`until=${start}`);
    if (!found) return;
    if (found.end <= found.start) { start = 0; return; }
    const height = log.scrollHeight, place = log.scrollTop;
    log.querySelector("pre").before(made(found));
    start = found.start;
    log.scrollTop = place + log.scrollHeight - height;
    const parts = [...log.querySelectorAll("pre")];
    if (parts.length <= MOST_PARTS) return;
    stopped();
    parts.at(-1).remove();
    end = Number(parts.at(-2).dataset.end);
  }

  async function later() {
    const found = await part(`start=${end}`);
    if (!found) return;
    size = found.size;
    if (found.end > found.start) { log.append(made(found)); end = found.end; trimmedAbove(); }
    else size = end;
    follow();
  }

  async function scrolled() {
    if (isBusy) return;
    isBusy = true;
    try {
      if (log.scrollTop < NEAR && start > 0) await earlier();
      else if (source === null && end < size && fromEnd() < NEAR) await later();
    } finally { isBusy = false; }
  }

  function appended(text, until) {
    const wasAtEnd = fromEnd() < 40, last = [...log.querySelectorAll("pre")].at(-1);
    log.querySelector(".empty")?.remove();
    if (last.textContent.length > MOST_TEXT) log.append(made({ text, start: end, end: until }));
    else { last.append(text); last.dataset.end = until; }
    size = end = until;
    if (wasAtEnd) { trimmedAbove(); log.scrollTop = log.scrollHeight; }
    else if (log.querySelectorAll("pre").length > MOST_PARTS) { stopped(); size = Infinity; } // until one scrolls down
  }

  function stopped() {
    source?.close();
    source = null;
    state.textContent = "";
  }

  function follow() {
    if (isOver || source !== null || end < size || document.hidden || !log.isConnected) return;
    const mine = source = new EventSource(`${log.dataset.follow}&start=${end}`);
    mine.addEventListener("open", () => { state.textContent = "following"; pause = 2000; });
    mine.addEventListener("log", (event) => { if (mine === source) appended(JSON.parse(event.data), Number(event.lastEventId)); });
    mine.addEventListener("end", () => {
      if (mine !== source) return;
      stopped();
      isOver = true;
      state.textContent = "ended";
      document.dispatchEvent(new Event("asynsched-changed"));
    });
    mine.addEventListener("error", () => {
      if (mine !== source) return;
      // The browser does not come back by itself if the answer is no stream, such as a proxy's.
      if (mine.readyState === EventSource.CLOSED) { stopped(); setTimeout(follow, pause); pause = Math.min(2 * pause, LONGEST_PAUSE); }
      state.textContent = "connecting again";
    });
  }

  const first = log.querySelector("pre");
  first.dataset.start = start; first.dataset.end = end;
  log.querySelector(".earlier")?.remove();
  if (end === size) log.scrollTop = log.scrollHeight;
  log.addEventListener("scroll", scrolled, { passive: true });
  log.addEventListener("keydown", (event) => { if (event.key === "End" && end === size) log.scrollTop = log.scrollHeight; });
  // Browsers have few connections for a site: tabs that nobody sees need none.
  document.addEventListener("visibilitychange", () => { if (document.hidden) stopped(); else follow(); });
  follow();
  return () => { isOver = true; stopped(); };
}

const shownLog = document.getElementById("log");
let leave = shownLog ? followed(shownLog) : null;

// A view that shows the newest try changes to the next one when that begins.

document.addEventListener("asynsched-refreshed", ({ detail: view }) => {
  const shown = document.getElementById("log"), newest = view.getElementById("log");
  if (new URLSearchParams(location.search).has("try_number") || !newest || newest.dataset.log === shown.dataset.log) return;
  leave();
  const found = (page) => page.querySelector(".log-head [name=try_number]");
  found(document).value = found(view).value;
  shown.replaceWith(document.adoptNode(newest));
  leave = followed(newest);
});
