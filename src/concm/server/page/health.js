// Health: which classes need more photos, what is confused, and which photos may be wrong.
import { el, get, many, percent } from "/static/tools.js";

export async function show(view, app) {
  const { classes, confused, doubtful } = await get("/api/health");
  const order = [...classes].sort((one, other) => other.needs_more - one.needs_more || (one.recognised ?? -1) - (other.recognised ?? -1));
  const link = (name) => el("button", { type: "button", onclick: () => app.open("classes", name) }, name);
  const rows = order.map((row) => el("tr", {}, el("th", { scope: "row" }, link(row.class)), el("td", {}, String(row.photos)),
    el("td", {}, row.recognised === null ? "–" : percent(row.recognised)),
    el("td", {}, row.needs_more ? el("span", { className: "tag more" }, "needs more photos") : "fine")));
  const parts = [el("p", { className: "soft" }, "Each taught photo is compared with its class without itself: so this is what "
    + "the photos say of each other, not a test. Measure with photos that were not taught: concm evaluate."),
  el("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "Classes" }, el("table", {}, el("thead", {}, el("tr", {},
    ...["class", "photos", "recognised by the others", ""].map((text) => el("th", { scope: "col" }, text)))), el("tbody", {}, ...rows)))];
  if (confused.length) {
    parts.push(el("h2", {}, "Confused"), el("ul", {}, ...confused.map((pair) =>
      el("li", {}, `${pair.class} is taken for ${pair.taken_for}: ${many(pair.photos.length, "photo")}`))));
  }
  if (doubtful.length) {
    parts.push(el("h2", {}, "Photos to look at ", el("small", {}, "more like another class than like their own")),
      el("ul", { className: "grid" }, ...doubtful.map((photo) => el("li", {}, el("div", { className: "card" },
        el("img", { src: `/api/photos/${photo.number}/thumbnail`, alt: photo.photo, loading: "lazy" }),
        el("div", { className: "text" }, el("b", {}, photo.class), el("small", {}, `like ${photo.more_like}`),
          link(photo.class)))))));
  }
  view.replaceChildren(...parts);
}
