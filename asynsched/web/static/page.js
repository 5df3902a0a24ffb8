/* What scripts add to every view: keys, dialogs, the palette, and parts that follow changes. */
"use strict";
document.documentElement.classList.add("with-js");
const root = document.body.dataset.root;

// Forms and dialogs

function opened(id) {
  const dialog = document.getElementById(id);
  if (dialog && !dialog.open) dialog.showModal();
  if (id === "palette") { const input = dialog.querySelector("input"); input.select(); input.dispatchEvent(new Event("input", { bubbles: true })); }
}

async function confirmed(address, opener) {
  // The view that asks whether to do it, as a dialog.
  const answer = await fetch(address, { headers: { Accept: "text/html" } });
  const found = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("act");
  if (!found) { location.assign(address); return; }
  const dialog = document.createElement("dialog");
  dialog.setAttribute("aria-label", opener.textContent.trim());
  dialog.append(document.importNode(found, true));
  dialog.addEventListener("close", () => { dialog.remove(); (opener.closest("details")?.querySelector("summary") ?? opener).focus(); });
  document.body.append(dialog);
  dialog.showModal();
}

document.addEventListener("click", (event) => {
  const target = event.target.closest("[data-open], a[data-dialog], [data-close], [data-confirm]");
  for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
  if (!target || event.ctrlKey || event.metaKey || event.shiftKey) return;
  if (target.dataset.open) opened(target.dataset.open);
  if ("dialog" in target.dataset) { event.preventDefault(); target.closest("details")?.removeAttribute("open"); confirmed(target.href, target); }
  if ("close" in target.dataset && target.closest("dialog")) { event.preventDefault(); target.closest("dialog").close(); }
  if (target.dataset.confirm && !window.confirm(target.dataset.confirm)) event.preventDefault();
});
document.addEventListener("submit", (event) => {
  if (!event.target.matches("form[data-dialog]")) return;
  event.preventDefault();
  const query = new URLSearchParams(new FormData(event.target, event.submitter));
  confirmed(`${event.target.action}?${query}`, event.submitter);
});

// A field that sends its form when it is changed. A list whose choice is moved by arrow keys, each of which is a
// change, is sent at Enter or when it is left.

let isByKeys = false;

function submitted(field) {
  delete field.dataset.changed;
  field.form.requestSubmit();
}

document.addEventListener("keydown", (event) => {
  if (!event.target.matches("select[data-submit]")) return;
  isByKeys = event.key !== "Enter";
  if (event.key === "Enter" && "changed" in event.target.dataset) { event.preventDefault(); submitted(event.target); }
});
document.addEventListener("pointerdown", () => { isByKeys = false; });
document.addEventListener("focusout", (event) => { if ("changed" in event.target.dataset) submitted(event.target); });
document.addEventListener("change", (event) => {
  if (!event.target.matches("[data-submit]")) return;
  if (isByKeys && event.target.matches("select")) event.target.dataset.changed = "";
  else submitted(event.target);
});

// Chosen rows

const picks = () => [...document.querySelectorAll("[data-pick]")];

function picked() {
  const form = document.getElementById("many");
  if (!form) return;
  const all = picks(), n = all.filter((one) => one.checked).length;
  form.classList.toggle("idle", !n);
  form.querySelector("[data-picked]").textContent = `${n} chosen:`;
  const every = document.querySelector("[data-pick-all]");
  if (every) { every.checked = n > 0 && n === all.length; every.indeterminate = n > 0 && n < all.length; }
}

document.addEventListener("change", (event) => {
  if (event.target.matches("[data-pick-all]")) for (const one of picks()) one.checked = event.target.checked;
  if (event.target.matches("[data-pick], [data-pick-all]")) picked();
});
document.addEventListener("htmx:after:swap", picked);
window.addEventListener("pageshow", picked); // a browser that goes back has kept what was chosen

// Keys

const PLACES = { h: "", d: "dags", r: "runs", t: "tasks", a: "assets" };
let before = "";

function moved(step) {
  const rows = [...document.querySelectorAll("table.rows tbody tr")].map((row) => row.querySelector("a.strong, a")).filter(Boolean);
  if (!rows.length) return;
  const here = rows.findIndex((link) => link.closest("tr").contains(document.activeElement));
  rows[Math.max(0, Math.min(rows.length - 1, here + step))].focus();
}

// In the palette, Enter goes to the first of those that are found for what is typed, once they are there.

let isChoosing = false;

function chosenFirst() {
  const typed = document.querySelector("#palette input").value.trim().toLowerCase();
  const found = document.querySelector("#palette [data-for]");
  if (found?.dataset.for !== typed) return false;
  found.querySelector("a")?.click();
  return true;
}

document.addEventListener("input", () => { isChoosing = false; });
document.getElementById("palette")?.addEventListener("close", () => { isChoosing = false; });
document.addEventListener("htmx:after:swap", () => { if (isChoosing) isChoosing = !chosenFirst(); });
document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") { event.preventDefault(); opened("palette"); return; }
  if (event.target.closest("#palette") && ["ArrowDown", "ArrowUp"].includes(event.key)) {
    const stops = [...document.querySelectorAll("#palette input, #palette a")];
    event.preventDefault();
    stops[(stops.indexOf(document.activeElement) + (event.key === "ArrowDown" ? 1 : stops.length - 1)) % stops.length].focus();
    return;
  }
  if (event.target.matches("#palette input") && event.key === "Enter") { isChoosing = !chosenFirst(); return; }
  if (event.key === "Escape") for (const menu of document.querySelectorAll("details.menu[open]")) { menu.open = false; menu.querySelector("summary").focus(); }
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input:not([type=checkbox]), select, textarea, dialog[open]")) return;
  if (before === "g" && event.key in PLACES) { location.assign(root + PLACES[event.key]); return; }
  before = event.key;
  if (event.key === "?") opened("help");
  if (event.key === "/") { const search = document.querySelector("[data-search]"); if (search) { event.preventDefault(); search.focus(); } }
  if (event.key === "j") moved(1);
  if (event.key === "k") moved(-1);
  if (event.key === "x") document.activeElement.closest("tr")?.querySelector("[data-pick]")?.click();
});

// A large grid is drawn with the rows that are seen. The others are laid out a few at a time while the browser is idle,
// because screen readers find no cells in a row that is skipped. A style sheet, unlike the rows, stays when the view is
// refreshed.

const ROWS_AT_ONCE = 20, PAUSE_AFTER_CLICK = 1000; // milliseconds: the click may lead to another view
const idle = window.requestIdleCallback ?? ((then) => setTimeout(then, 50));
let clickedAt = -PAUSE_AFTER_CLICK;

document.addEventListener("click", () => { clickedAt = performance.now(); }, { capture: true });

function laidOut(sheet, nRows) {
  if (performance.now() < clickedAt + PAUSE_AFTER_CLICK) {
    setTimeout(() => idle(() => laidOut(sheet, nRows)), PAUSE_AFTER_CLICK);
    return;
  }
  const isAll = nRows >= document.querySelectorAll(".grid.large tbody tr").length;
  sheet.replaceSync(`.grid.large tbody tr${isAll ? "" : `:nth-child(-n + ${nRows})`} { content-visibility: visible !important; }`);
  if (!isAll) idle(() => laidOut(sheet, nRows + ROWS_AT_ONCE));
}

let sheetOfRows = null;

function laidOutLater() {
  if (sheetOfRows || !document.querySelector(".grid.large")) return;
  sheetOfRows = new CSSStyleSheet();
  document.adoptedStyleSheets.push(sheetOfRows);
  idle(() => laidOut(sheetOfRows, ROWS_AT_ONCE));
}

window.addEventListener("load", laidOutLater);
document.addEventListener("htmx:after:swap", laidOutLater); // groups that are opened may make a grid a large one

// A cell of a large grid becomes a link when somebody points at it, or moves to it from a head or a cell by arrow keys.

function linked(cell) {
  const head = cell.parentElement.firstElementChild, task = head.dataset.task;
  const run = cell.closest("table").querySelector(".runs").children[cell.cellIndex]?.querySelector("a");
  if (!run || cell.querySelector("a")) return cell.querySelector("a");
  const link = document.createElement("a");
  link.href = run.href;
  if (task !== undefined && "mapped" in cell.dataset) link.search = new URLSearchParams({ task_id: task });
  else if (task !== undefined) link.pathname += `/tasks/${encodeURIComponent(task)}`;
  link.title = `${head.textContent}: ${cell.className.replaceAll("-", " ")}`;
  link.setAttribute("aria-label", link.title);
  link.tabIndex = -1;
  link.append(...cell.childNodes);
  cell.append(link);
  return link;
}

const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

document.addEventListener("pointerover", (event) => {
  const cell = event.target.closest(".grid.large tbody td[class]");
  if (cell) linked(cell);
});
document.addEventListener("keydown", (event) => {
  const here = event.target.closest(".grid.large :is(th, td)"), step = STEPS[event.key];
  if (!here || !step || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
  event.preventDefault();
  let [row, column] = [here.parentElement.rowIndex, here.cellIndex];
  for (;;) {
    row += step[0]; column += step[1];
    const next = here.closest("table").rows[row]?.cells[column];
    if (!next) return;
    const link = next.querySelector("a") ?? (next.matches("td[class]") ? linked(next) : null);
    if (link) { link.focus(); return; }
  }
});

// Parts that follow changes: one stream of events for all tabs of this browser. The tab that holds the lock reads it,
// and tells the others. Changes have ascending numbers. Each tab knows the number up to which it has shown or heard of
// them: it asks for those that came while it was loaded, and reads on from there when the tab before it closes.

const followers = () => [...document.querySelectorAll("[data-live]")];
const SHORTEST = 700, LONGEST = 60000; // milliseconds between two looks; the latter if they fail
const note = document.getElementById("not-live");
let due = null, shownAt = 0, pause = SHORTEST, isRefreshing = false, isStale = false, isMissing = false;
let isLost = false; // the stream, whichever tab reads it

const noted = () => { note.hidden = !isLost && pause === SHORTEST; };
const isHeld = () => document.querySelector("details.menu[open], dialog[open], [data-pick]:checked") !== null;

function concerns(change) {
  return followers().some((part) => {
    const { live, liveRun } = part.dataset;
    return !change.dag_id || live === "all" || (live === change.dag_id && (!liveRun || liveRun === change.run_id));
  });
}

async function fetched(address) {
  // The view as it is now; null if the answer is another one, such as a proxy's.
  try {
    const answer = await fetch(address, { headers: { Accept: "text/html" }, signal: AbortSignal.timeout(LONGEST) });
    const text = await answer.text(), view = new DOMParser().parseFromString(text, "text/html");
    const isGone = [403, 404, 410].includes(answer.status) && "root" in view.body.dataset; // of our own error page
    if (isGone || (answer.redirected && new URL(answer.url).pathname === `${root}login`)) location.reload();
    return answer.ok && followers().every((part) => view.getElementById(part.id)) ? { text, view } : null;
  } catch { return null; }
}

async function shown({ text, view }) {
  const isOther = followers().some((part) => part.dataset.version !== view.getElementById(part.id).dataset.version);
  for (const part of followers())
    await htmx.swap({ text, sourceElement: part, target: part, select: `#${CSS.escape(part.id)}`, swap: "outerMorph ignoreTitle:true" });
  document.dispatchEvent(new CustomEvent("asynsched-refreshed", { detail: view }));
  if (isOther) document.dispatchEvent(new Event("asynsched-other")); // parts that are fetched by themselves are out of date
}

async function refreshed() {
  due = null;
  if (document.hidden) { isMissing = true; return; }
  isMissing = isStale = false;
  isRefreshing = true;
  const address = location.href;
  let found = null, isUsed = isHeld();
  try {
    found = isUsed ? null : await fetched(address);
    isUsed ||= isHeld() || address !== location.href; // meanwhile
    if (found && !isUsed) await shown(found);
  } finally {
    isRefreshing = false;
    shownAt = performance.now();
    pause = found || isUsed ? SHORTEST : Math.min(2 * pause, LONGEST);
    noted();
    if (!found || isUsed) due = setTimeout(refreshed, pause);
    else if (isStale) soon();
  }
}

function soon() {
  if (isRefreshing) isStale = true;
  else due ??= setTimeout(refreshed, Math.max(120, SHORTEST - (performance.now() - shownAt)));
}

const heard = (change) => { if (concerns(change)) soon(); };

document.addEventListener("visibilitychange", () => { if (!document.hidden && isMissing) soon(); });
document.addEventListener("asynsched-changed", () => heard({}));

// htmx would look at each attribute of all elements for handlers, which the policy of contents forbids, and at each link
// and form: of a large grid, that takes tens of milliseconds, at each refresh again. So it gets its own elements alone.

const OF_HTMX = "[hx-get]";

document.addEventListener("htmx:before:process", (event) => {
  if (event.target.matches(OF_HTMX)) return;
  event.preventDefault();
  for (const one of event.target.querySelectorAll(OF_HTMX)) htmx.process(one);
});

// A part that is fetched by itself stays as it is if the answer does not have it. A form whose answer does not is sent as
// without scripts: the answer is an error, or the page that signs in.
document.addEventListener("htmx:before:swap", (event) => {
  const { ctx, tasks } = event.detail, main = tasks.find((task) => task.type === "main");
  if (!ctx.select || !main || main.fragment.firstElementChild) return;
  event.preventDefault();
  if (ctx.sourceElement.matches("form")) ctx.sourceElement.submit();
});

if (followers().length) {
  const name = `asynsched events ${root}`;
  const others = "BroadcastChannel" in window ? new BroadcastChannel(name) : null;
  let { present } = document.body.dataset, isReader = false;
  const heardOf = ({ number, isMissed, isLost: isLostNow, ...change }) => {
    isLost = Boolean(isLostNow);
    noted();
    if (isLost || (!isMissed && Number(number) <= Number(present))) return;
    present = number;
    if (isMissed && due !== null) { clearTimeout(due); due = null; }
    heard(change);
  };
  const tell = (news) => { heardOf(news); others?.postMessage(news); };
  const tellState = () => others?.postMessage({ number: present, isLost });
  const changed = (event) => { const { dag_id, run_id } = JSON.parse(event.data); tell({ number: event.lastEventId, dag_id, run_id }); };
  const once = () => new Promise((ended) => {
    const source = new EventSource(`${root}api/asynsched/v1/events${present && `?since=${present}`}`);
    source.addEventListener("change", changed);
    source.addEventListener("missed", (event) => tell({ number: event.lastEventId, isMissed: true }));
    source.addEventListener("open", () => { if (isLost) tell({ number: present, isMissed: true }); });
    source.addEventListener("error", () => {
      if (!isLost) tell({ number: present, isLost: true });
      if (source.readyState === EventSource.CLOSED) ended(); // the browser does not come back by itself: a proxy has answered
    });
  });
  const read = async () => {
    isReader = true;
    tellState();
    for (let pause = 2000; ; pause = isLost ? Math.min(2 * pause, 60000) : 2000) {
      await once();
      await new Promise((over) => setTimeout(over, pause));
    }
  };
  if (others) others.onmessage = ({ data }) => {
    if (!("isSince" in data)) heardOf(data);
    else if (isReader && (isLost || Number(data.isSince) < Number(present))) tellState();
  };
  others?.postMessage({ isSince: present });
  if (navigator.locks) navigator.locks.request(name, read);
  else read();
}
