// The inbox: photos that were called unknown or unsure, to be named many at a time.
import { attempt, change, el, get, grid, learned, many, nameInput, percent, post, say, tile } from "/static/tools.js";

const chosen = new Set();

export async function show(view, app) {
  const { photos } = await get("/api/inbox");
  const here = new Set(photos.map((photo) => photo.inbox));
  for (const number of [...chosen]) if (!here.has(number)) chosen.delete(number);
  if (!photos.length) {
    return view.replaceChildren(el("div", { className: "empty" },
      el("p", {}, "Nothing waits for a name."),
      el("p", {}, "Photos that the classifier does not know, or is not sure of, come here, from this page or the API.")));
  }
  const count = el("strong", { id: "chosen" });
  const name = nameInput("Name of the chosen photos", "What is it?");
  const teach = el("button", { type: "submit", className: "main" }, "Teach");
  const drop = el("button", { type: "button", onclick: () => dismiss(app) }, "Dismiss");
  const all = el("button", { type: "button" });
  const changed = () => {
    count.textContent = `${chosen.size} of ${many(photos.length, "photo")} chosen`;
    teach.disabled = drop.disabled = chosen.size === 0;
    all.textContent = chosen.size === photos.length ? "Choose none" : "Choose all";
  };
  all.addEventListener("click", () => choose(document.getElementById("view"), chosen.size < photos.length, changed));
  const bar = el("form", { className: "bar" }, count, name, teach, drop, el("span", { className: "spacer" }), all);
  bar.addEventListener("submit", (event) => {
    event.preventDefault();
    if (name.value.trim()) learn(name.value.trim(), app);
    else name.focus();
  });
  const waiting = photos.filter((photo) => !photo.recognised);
  const recognised = photos.filter((photo) => photo.recognised);
  const groups = [...new Set(waiting.map((photo) => photo.group))]
    .map((group) => waiting.filter((photo) => photo.group === group))
    .sort((one, other) => other.length - one.length);
  const alike = groups.filter((group) => group.length > 1);
  const single = groups.filter((group) => group.length === 1).flat();
  const parts = alike.map((group) => section(`${group.length} photos that look alike`, group, changed));
  if (single.length) parts.push(section(alike.length ? "Others" : "Photos without a name", single, changed));
  if (recognised.length) parts.push(section("Recognised by now", recognised, changed));
  view.replaceChildren(bar, full(app.status), ...parts);
  changed();
}

// What a full inbox means: nothing that waits goes without a word.
function full(status) {
  const { inbox, inbox_room: room, inbox_dropped: dropped } = status || {};
  if (!(inbox >= room || dropped)) return "";
  const gone = dropped ? `: ${many(dropped, "older one was", "older ones were")} dropped since the server was started` : "";
  return el("p", { id: "full", className: "is-unknown" }, `The inbox keeps the newest ${many(room, "photo")} that wait${gone}. `
    + "Name or dismiss some to make room.");
}

function section(title, photos, changed) {
  const numbers = photos.map((photo) => photo.inbox);
  const part = el("section");
  const button = el("button", { type: "button" }, photos.length > 1 ? "choose these" : "choose this");
  button.addEventListener("click", () => {
    const every = numbers.every((number) => chosen.has(number));
    choose(part, !every, changed);
  });
  const cards = photos.map((photo) => {
    const [best, score] = photo.top[0];
    const words = photo.unknown ? "unknown" : photo.recognised ? photo.label : "unsure";
    return tile(`/api/inbox/${photo.inbox}/thumbnail`, photo.inbox, chosen, changed,
      el("b", { className: photo.recognised ? "" : "is-unknown" }, words),
      el("small", {}, photo.recognised ? percent(score) : `most like ${best}, ${percent(score)}`));
  });
  part.append(el("h2", {}, `${title} `, photos.length > 1 ? button : ""), grid(cards));
  return part;
}

function choose(place, on, changed) {
  for (const box of place.querySelectorAll(".card input[type=checkbox]")) {
    box.checked = on;
    const number = Number(box.value);
    if (on) chosen.add(number);
    else chosen.delete(number);
  }
  changed();
}

function learn(name, app) {
  say(`Learning ${name} …`);
  return change("/api/learn", { classes: { [name]: [...chosen] } }, async (done) => {
    chosen.clear();
    say(learned(done));
    await app.refresh(true);
  });
}

async function dismiss(app) {
  const numbers = [...chosen];
  await attempt(async () => {
    await post("/api/inbox/dismiss", { photos: numbers });
    chosen.clear();
    say(`Dismissed ${many(numbers.length, "photo")}.`);
    await app.refresh(true);
  });
}
