// The page: which view is open, what version the server has, and what is dropped on it.
import { aged, ask, dropped, show as answers } from "/static/answers.js";
import { camera } from "/static/camera.js";
import { show as classes } from "/static/classes.js";
import { show as health } from "/static/health.js";
import { show as history } from "/static/history.js";
import { show as inbox } from "/static/inbox.js";
import { show as map } from "/static/map.js";
import { attempt, el, get, many, post, say } from "/static/tools.js";

const VIEWS = { inbox: ["Inbox", inbox], answers: ["Answers", answers], classes: ["Classes", classes],
  health: ["Health", health], map: ["Map", map], history: ["History and export", history] };
const EVERY = 2000;
const view = document.getElementById("view");
const undo = document.getElementById("undo");
let current = null;
let drawing = 0;

const app = {
  status: null,
  open(name, ...more) {
    current = name;
    location.hash = name;
    for (const tab of document.querySelectorAll("#tabs button")) {
      if (tab.value === name) tab.setAttribute("aria-current", "page");
      else tab.removeAttribute("aria-current");
    }
    const mine = ++drawing;  // what an older drawing still waits for is not shown any more
    const place = { replaceChildren: (...parts) => mine === drawing && view.replaceChildren(...parts) };
    return attempt(() => VIEWS[name][1](place, app, ...more));
  },
  // Show that something is under way: a share of what this page asked for, or a job of the server.
  busy(on, share = null, percent = null) {
    const progress = document.getElementById("progress");
    if (share !== null) app.asking = on;
    progress.hidden = !(on || app.asking);
    if (share !== null && on) progress.value = share;
    else if (!app.asking && percent !== null) progress.value = percent / 100;
    else if (!app.asking) progress.removeAttribute("value");
  },
  // Ask the server how things are; views are drawn anew when they have changed.
  async refresh(again = false) {
    const status = await get("/api/status");
    const known = app.status;
    const moved = known !== null && (status.version !== known.version
      || (current === "inbox" && (status.inbox !== known.inbox || status.inbox_dropped !== known.inbox_dropped)));
    const elsewhere = moved && !again;
    const version = known === null || status.version !== known.version;
    app.status = status;
    document.title = `${status.store} – concm`;
    document.getElementById("store").textContent = status.store;
    document.getElementById("summary").textContent =
      `version ${status.version} · ${many(status.classes, "class", "classes")} · ${many(status.photos, "photo")}`;
    undo.disabled = !status.can_undo;
    undo.textContent = undo.title = status.can_undo ? `Undo: ${status.last.action} ${status.last.detail}` : "Undo";
    const badge = document.querySelector("#tabs .count");
    badge.textContent = String(status.inbox);
    badge.hidden = status.inbox === 0;
    const [job] = status.jobs;
    app.busy(job !== undefined || status.checking !== null, null, job ? job.percent ?? null : status.checking);
    if (version) await names();
    const typing = document.activeElement && document.activeElement.matches("main input[type=text]") && document.activeElement.value;
    if (current === "answers") aged(status.version);
    else if (again || (elsewhere && !typing)) await app.open(current);
  },
};

async function names() {
  const { classes: rows } = await get("/api/classes");
  document.getElementById("names").replaceChildren(...rows.map((row) => el("option", { value: row.name })));
}

for (const [name, [title]] of Object.entries(VIEWS)) {
  const count = name === "inbox" ? el("span", { className: "count", hidden: true }) : null;
  document.getElementById("tabs").append(el("button", { type: "button", value: name, onclick: () => { say(""); app.open(name); } }, title, count || ""));
}
for (const id of ["files", "folder"]) {
  const input = document.getElementById(id);
  input.addEventListener("change", async () => {
    const files = [...input.files];
    input.value = "";
    await ask(files, app);
  });
}
addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("over"); });
addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("over"); });
addEventListener("drop", async (event) => {
  event.preventDefault();
  document.body.classList.remove("over");
  await ask(await dropped(event.dataTransfer.items), app);
});
undo.addEventListener("click", () => attempt(async () => {
  undo.disabled = true;
  const done = await post("/api/undo", { version: app.status.version });
  say(`Back at version ${done.version}.`);
  await app.refresh(true);
}));
camera(app);

const wanted = location.hash.slice(1);
await attempt(async () => {
  await app.refresh();
  if (current === null) await app.open(wanted in VIEWS ? wanted : app.status.inbox ? "inbox" : "answers");
});
let failing = false;
setInterval(async () => {
  try {
    await app.refresh();
    if (failing) say("");
    failing = false;
  } catch (error) {
    failing = true;
    say(`The server does not answer: ${error.message}`, true);
  }
}, EVERY);
