/* A log: its end first, earlier parts when one scrolls up, and what is appended while its try runs. */
"use strict";
const MOST_PARTS = 40; // in the document at once: with about 256 kB each, a browser stays quick
const NEAR = 400; // pixels from an edge at which the next part is fetched

function followed(log) {
  let start = Number(log.dataset.start), end = Number(log.dataset.end), size = Number(log.dataset.size);
  let isBusy = false;
  const state = document.querySelector(".log-state");
  const atEnd = () => log.scrollHeight - log.scrollTop - log.clientHeight < 40;

  async function part(query) {
    const answer = await fetch(`${log.dataset.log}&${query}`);
    if (!answer.ok) return null;
    const number = (name) => Number(answer.headers.get(name));
    return { text: await answer.text(), start: number("X-Start"), end: number("X-End"), size: number("X-Size") };
  }

  function made(found) {
    const pre = document.createElement("pre");
    pre.textContent = found.text;
    pre.dataset.start = found.start;
    pre.dataset.end = found.end;
    return pre;
  }

  async function earlier() {
    const found = await part(`until=${start}`);
    if (!found || found.end <= found.start) { start = 0; return; }
    const height = log.scrollHeight, place = log.scrollTop;
    log.querySelector("pre").before(made(found));
    start = found.start;
    log.scrollTop = place + log.scrollHeight - height;
    const parts = log.querySelectorAll("pre");
    if (parts.length > MOST_PARTS) { const last = parts[parts.length - 1]; end = Number(last.dataset.start ?? end); last.remove(); }
  }

  async function later() {
    const found = await part(`start=${end}`);
    if (!found || found.end <= found.start) { size = end; return; }
    log.append(made(found));
    end = found.end; size = found.size;
    const parts = log.querySelectorAll("pre");
    if (parts.length > MOST_PARTS) { const height = log.scrollHeight, place = log.scrollTop; start = Number(parts[1].dataset.start ?? start); parts[0].remove(); log.scrollTop = place - (height - log.scrollHeight); }
  }

  async function scrolled() {
    if (isBusy) return;
    isBusy = true;
    try {
      if (log.scrollTop < NEAR && start > 0) await earlier();
      else if (end < size && log.scrollHeight - log.scrollTop - log.clientHeight < NEAR) await later();
    } finally { isBusy = false; }
  }

  function follow() {
    const source = new EventSource(`${log.dataset.follow}&start=${end}`);
    state.textContent = "following";
    source.addEventListener("log", (event) => {
      const wasAtEnd = atEnd(), pre = [...log.querySelectorAll("pre")].at(-1);
      log.querySelector(".empty")?.remove();
      // Long parts are cut, so that the browser lays out only what is near.
      if (pre.textContent.length > 200000) log.append(made({ text: JSON.parse(event.data), start: end, end: Number(event.lastEventId) }));
      else pre.append(JSON.parse(event.data));
      size = Math.max(size, end = Number(event.lastEventId));
      if (wasAtEnd) log.scrollTop = log.scrollHeight;
    });
    source.addEventListener("end", () => { source.close(); state.textContent = "ended"; document.dispatchEvent(new Event("asynsched:changed")); });
    source.addEventListener("error", () => { state.textContent = "connecting again"; });
    source.addEventListener("open", () => { state.textContent = "following"; });
  }

  const first = log.querySelector("pre");
  first.dataset.start = start; first.dataset.end = end;
  log.querySelector(".earlier")?.remove();
  if (end === size) log.scrollTop = log.scrollHeight;
  log.addEventListener("scroll", scrolled, { passive: true });
  log.addEventListener("keydown", (event) => { if (event.key === "End" && end === size) log.scrollTop = log.scrollHeight; });
  if ("isLive" in log.dataset) follow();
}

const shownLog = document.getElementById("log");
if (shownLog) followed(shownLog);
