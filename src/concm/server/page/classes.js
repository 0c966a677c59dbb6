// The gallery: all classes, and the photos of one of them, to be moved, removed, renamed or merged.
import { change as asked, el, get, grid, many, nameInput, say, tile } from "/static/tools.js";

let open = null;
const chosen = new Set();

export async function show(view, app, name) {
  if (name !== undefined) {
    open = name;
    chosen.clear();
  }
  const { classes } = await get("/api/classes");
  return classes.some((row) => row.name === open) ? one(view, app, classes) : list(view, app, classes);
}

function list(view, app, classes) {
  const rows = classes.map((row) => el("li", {}, el("button", { type: "button", onclick: () => app.open("classes", row.name) },
    el("span", {}, row.name), el("span", { className: "tag" }, `${many(row.photos, "photo")}${row.base ? ", base" : ""}`))));
  view.replaceChildren(el("h2", {}, many(classes.length, "class", "classes")), el("ul", { className: "rows" }, ...rows));
}

async function one(view, app, classes) {
  const row = classes.find((own) => own.name === open);
  const { photos } = await get(`/api/classes/${encodeURIComponent(open)}/photos`);
  const here = new Set(photos.map((photo) => photo.number));
  for (const number of [...chosen]) if (!here.has(number)) chosen.delete(number);
  const change = (words, path, body, next = open) => asked(path, body, async (done) => {
    open = next;
    chosen.clear();
    say(`${words}: version ${done.version}.`);
    await app.refresh(true);
  });
  const back = el("button", { type: "button", onclick: () => app.open("classes", null) }, "← All classes");
  const to = nameInput("Move to class", "Move to …");
  const move = el("button", { type: "submit" }, "Move");
  const remove = el("button", { type: "button", className: "risky", onclick: () =>
    change(`Removed ${many(chosen.size, "photo")}`, "/api/photos/remove", { photos: [...chosen] }) }, "Remove");
  const count = el("strong");
  const changed = () => {
    count.textContent = `${chosen.size} of ${many(photos.length, "photo")} chosen`;
    move.disabled = remove.disabled = chosen.size === 0;
  };
  const bar = el("form", { className: "bar" }, back, count, to, move, remove);
  bar.addEventListener("submit", (event) => {
    event.preventDefault();
    const name = to.value.trim();
    if (name) change(`Moved ${many(chosen.size, "photo")} to ${name}`, "/api/photos/move", { photos: [...chosen], to: name });
    else to.focus();
  });
  const cards = photos.map((photo) =>
    tile(`/api/photos/${photo.number}/thumbnail`, photo.number, chosen, changed, el("small", {}, photo.photo)));
  const renamed = el("input", { type: "text", value: open, "aria-label": "New name", maxLength: 100, autocomplete: "off" });
  const rename = el("form", { className: "fix" }, renamed, el("button", { type: "submit" }, "Rename"));
  rename.addEventListener("submit", (event) => {
    event.preventDefault();
    const name = renamed.value.trim();
    change(`Renamed ${open} to ${name}`, "/api/classes/rename", { name: open, to: name }, name);
  });
  const others = el("select", { "aria-label": "Merge into" },
    ...classes.filter((own) => own.name !== open).map((own) => el("option", { value: own.name }, own.name)));
  const merge = el("form", { className: "fix" }, others, el("button", { type: "submit" }, "Merge into it"));
  merge.addEventListener("submit", (event) => {
    event.preventDefault();
    change(`Merged ${open} into ${others.value}`, "/api/classes/merge", { names: [open], into: others.value }, others.value);
  });
  const forget = el("button", { type: "button", className: "risky", onclick: () =>
    change(`Forgot ${open}`, "/api/classes/forget", { name: open }, null) }, "Forget this class");
  view.replaceChildren(bar, el("h2", {}, `${open} `, el("span", { className: "tag" }, row.base ? "base class" : `since version ${row.added}`)),
    grid(cards), el("h2", {}, "Change the class"), rename, merge, el("p", {}, forget));
  changed();
}
