// Health: which classes need more photos, what is confused, and which photos may be wrong or do harm.
import { attempt, change, el, get, many, say } from "/static/tools.js";

const VERDICTS = { "enough": "enough photos", "more photos": "needs more photos", "confused": "looks like another class" };
const percent = (value) => value === null ? "–" : `${Math.round(value)}\u00a0%`;
const picture = (number, alt) => el("img", { src: `/api/photos/${number}/thumbnail`, alt, loading: "lazy" });

export async function show(view, app) {
  const patience = setTimeout(() => {
    view.replaceChildren(el("p", { className: "soft" }, "Comparing all taught photos with each other …"));
    attempt(() => app.refresh());
  }, 300);
  const { classes, mislabelled, harmful, confused, expected } = await get("/api/health").finally(() => clearTimeout(patience));
  const link = (name) => el("button", { type: "button", onclick: () => app.open("classes", name) }, name);
  const order = [...classes].sort((one, other) => (one.expected ?? -1) - (other.expected ?? -1));
  const rows = order.map((row) => el("tr", {}, el("th", { scope: "row" }, link(row.name)),
    el("td", {}, row.separate === row.photos ? String(row.photos) : `${row.photos} (${row.separate} apart)`),
    ...[row.expected, row.with_5_more, row.with_20_more].map((value) => el("td", {}, percent(value))),
    el("td", {}, el("span", { className: row.verdict === "enough" ? "" : "tag more" }, VERDICTS[row.verdict]))));
  const heads = ["class", "photos", "expected to be right", "with 5 more each", "with 20 more each", ""];
  const parts = [
    el("p", { className: "soft" }, `Each taught photo is compared with its class without itself: of photos like these, ${percent(expected)} are `
      + "expected to be right. This is what the photos say of each other, and no test. Measure with photos that were not taught: concm evaluate."),
    el("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "Classes" }, el("table", {},
      el("thead", {}, el("tr", {}, ...heads.map((text) => el("th", { scope: "col" }, text)))), el("tbody", {}, ...rows))),
    ...photos(app, "Likely mislabelled ", "more like another class than like their own", mislabelled, (photo) => `like ${photo.more_like}`,
      (photo) => ["Move there", "/api/photos/move", { photos: [photo.number], to: photo.more_like }]),
    ...photos(app, "Photos that do harm ", "without them, others would be recognised", harmful, (photo) => `costs about ${many(Math.round(photo.harm), "photo")}`,
      (photo) => ["Remove", "/api/photos/remove", { photos: [photo.number] }]),
  ];
  if (confused.length) {
    parts.push(el("h2", {}, "Confused"), el("ul", { className: "pairs" }, ...confused.map((pair) => el("li", {},
      el("p", {}, link(pair.name), ` is taken for `, link(pair.taken_for), `: ${many(pair.photos.length, "photo")}`),
      el("p", {}, ...pair.photos.slice(0, 6).map((number) => picture(number, `photo of ${pair.name}`)), el("small", {}, " like "),
        ...pair.because.slice(0, 6).map((number) => picture(number, `photo of ${pair.taken_for}`)))))));
  }
  view.replaceChildren(...parts);
}

// Photos with what is wrong with them, a way to their class, and one to mend it.
function photos(app, title, why, found, words, mend) {
  if (!found.length) return [];
  const cards = found.map((photo) => {
    const [name, path, body] = mend(photo);
    const mended = () => change(path, body, async (done) => {
      say(`${done.action}: ${done.detail}: version ${done.version}.`);
      await app.refresh(true);
    });
    return el("li", {}, el("div", { className: "card" }, picture(photo.number, photo.photo), el("div", { className: "text" },
      el("b", {}, photo.name), el("small", {}, words(photo)), el("div", { className: "fix" },
        el("button", { type: "button", onclick: () => app.open("classes", photo.name) }, "Show class"),
        el("button", { type: "button", onclick: mended }, name)))));
  });
  return [el("h2", {}, title, el("small", {}, why)), el("ul", { className: "grid" }, ...cards)];
}
