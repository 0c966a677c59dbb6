// The map: every taught photo as a dot, every class as a name where its photos lie.
import { el, get } from "/static/tools.js";

export async function show(view, app) {
  const { classes, photos } = await get("/api/map");
  const canvas = el("canvas");
  const tip = el("div", { className: "tip", hidden: true });
  const box = el("div", { className: "map", role: "img", "aria-label": `A map of ${classes.length} classes` }, canvas, tip);
  const place = new Map(classes.map((row, at) => [row.class, at]));
  const colour = (name) => `hsl(${(place.get(name) * 137.5) % 360} 60% 50%)`;
  const at = ([x, y]) => [24 + x * (canvas.clientWidth - 48), 24 + y * (canvas.clientHeight - 48)];
  function draw() {
    const sharp = window.devicePixelRatio || 1;
    canvas.width = canvas.clientWidth * sharp;
    canvas.height = canvas.clientHeight * sharp;
    const pen = canvas.getContext("2d");
    pen.scale(sharp, sharp);
    pen.globalAlpha = 0.75;
    for (const photo of photos) {
      pen.fillStyle = colour(photo.class);
      pen.beginPath();
      pen.arc(...at(photo.at), 4, 0, 7);
      pen.fill();
    }
    pen.globalAlpha = 1;
    pen.font = "600 13px system-ui, sans-serif";
    pen.textAlign = "center";
    const style = getComputedStyle(box);
    const taken = [];
    for (const row of classes) {
      const wide = pen.measureText(row.class).width / 2 + 4;
      const [left, top] = at(row.at);
      const x = Math.min(Math.max(left, wide), canvas.clientWidth - wide);
      const free = (y) => y > 12 && y < canvas.clientHeight - 4
        && taken.every((other) => Math.abs(x - other.x) > wide + other.wide || Math.abs(y - other.y) > 15);
      const y = [-8, 18, -24, 34].map((step) => top + step).find(free);
      if (y === undefined) continue;  // it would cover another name, and its dots tell it too
      taken.push({ x, y, wide });
      pen.lineWidth = 4;
      pen.strokeStyle = style.backgroundColor;
      pen.strokeText(row.class, x, y);
      pen.fillStyle = style.color;
      pen.fillText(row.class, x, y);
    }
  }
  function nearest(event) {
    const { left, top } = canvas.getBoundingClientRect();
    const far = (photo) => Math.hypot(at(photo.at)[0] - event.clientX + left, at(photo.at)[1] - event.clientY + top);
    const best = photos.reduce((one, other) => (far(other) < far(one) ? other : one), photos[0]);
    return far(best) < 16 ? best : null;
  }
  canvas.addEventListener("pointermove", (event) => {
    const photo = nearest(event);
    tip.hidden = photo === null;
    if (photo === null) return;
    const [x, y] = at(photo.at);
    tip.style.left = `${Math.min(x + 10, canvas.clientWidth - 120)}px`;
    tip.style.top = `${Math.min(y + 10, canvas.clientHeight - 140)}px`;
    tip.replaceChildren(el("img", { src: `/api/photos/${photo.number}/thumbnail`, alt: "" }), photo.class);
  });
  canvas.addEventListener("click", (event) => {
    const photo = nearest(event);
    if (photo !== null) app.open("classes", photo.class);
  });
  view.replaceChildren(box, el("p", { className: "soft" },
    "The two directions in which the classes differ most; what lies close here may still differ in others. A dot is a photo: point at it to read its class, click it to see it."));
  draw();
  new ResizeObserver(draw).observe(box);
}
