// History: the versions that led here, undo, and ways to take the classifier elsewhere.
import { attempt, el, get, post, say } from "/static/tools.js";

export async function show(view, app) {
  const { versions } = await get("/api/history");
  const rows = [...versions].reverse().map((row) => el("tr", {}, el("th", { scope: "row" }, String(row.version)),
    el("td", {}, row.created.slice(0, 16).replace("T", " ")), el("td", { className: "what" }, `${row.action}: ${row.detail}`),
    el("td", {}, String(row.classes)), el("td", {}, String(row.photos))));
  const make = (what, words) => el("button", { type: "button", onclick: () => fetched(what) }, words);
  const card = el("a", { className: "button", href: "/api/card", download: "CARD.md" }, "Model card");
  view.replaceChildren(
    el("h2", {}, "Versions"), el("p", { className: "soft" }, "Every change is one version; Undo steps back one by one."),
    el("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "Versions" }, el("table", {}, el("thead", {}, el("tr", {},
      ...["version", "when (UTC)", "what", "classes", "photos"].map((text) => el("th", { scope: "col" }, text)))), el("tbody", {}, ...rows))),
    el("h2", {}, "Take it elsewhere"),
    el("p", { className: "fix" }, card, make("onnx", "ONNX network"), make("backup", "Backup of the store")));
}

async function fetched(what) {
  await attempt(async () => {
    say(`Writing the ${what} …`);
    const done = await post("/api/export", { what });
    say(`The ${what} is ready.`);
    el("a", { href: done.file, download: "" }).click();
  });
}
