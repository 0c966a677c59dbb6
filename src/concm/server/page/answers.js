// Asking: photos that are dropped, chosen or taken, and what the classifier says of them.
import { attempt, el, many, nameInput, percent, post, say } from "/static/tools.js";

const AT_ONCE = 8;
const PICTURE = /\.(jpe?g|jfif|png|webp|gif|bmp|tiff?|avif|hei[cf]|jp2|ppm)$/i;
let answers = [];

export function show(view, app) {
  if (!answers.length) {
    return view.replaceChildren(el("div", { className: "empty" },
      el("p", {}, "Drop photos on this page, choose some, or use the camera: the answers come here."),
      el("p", {}, "Nothing leaves this machine.")));
  }
  const clear = el("button", { type: "button", onclick: () => { answers = []; app.open("answers"); } }, "Clear");
  const unknown = answers.filter((answer) => answer.unknown).length;
  const words = `${many(answers.length, "answer")}${unknown ? `, ${unknown} unknown` : ""}`;
  view.replaceChildren(el("div", { className: "bar" }, el("strong", {}, words), byFolder(app), el("span", { className: "spacer" }), clear),
    el("div", { className: "grid wide" }, ...answers.map((answer) => card(answer))));
}

// Photos that came in folders can be taught as classes, all in one version.
function byFolder(app) {
  const classes = {};
  for (const answer of answers) if (answer.folder) (classes[answer.folder] ??= []).push(answer.inbox);
  const count = Object.keys(classes).length;
  if (!count) return null;
  const words = count === 1 ? `Teach these as ${Object.keys(classes)[0]}` : `Teach ${count} folders as classes`;
  return el("button", { type: "button", onclick: () => attempt(async () => {
    say("Learning …");
    const done = await post("/api/learn", { classes, duplicates: "skip" });
    for (const answer of answers) delete answer.folder;
    say([`Learned ${done.detail}: version ${done.version}.`, ...done.remarks].join(" "));
    await app.refresh();
    app.open("answers");
  }) }, words);
}

function card(answer) {
  const familiar = answer.familiarity === null ? "too few photos are taught to call anything unknown"
    : answer.unknown ? `stranger than ${percent(1 - answer.familiarity)} of known photos`
    : `more familiar than ${percent(answer.familiarity)} of known photos`;
  const guesses = answer.top.slice(0, 3).map(([name, share]) => {
    const bar = el("i");
    bar.style.width = `${100 * share}%`;
    return el("li", {}, el("span", {}, name), el("span", { className: "share" }, percent(share)), el("span", { className: "meter" }, bar));
  });
  const near = (answer.nearest || []).map((photo) => el("figure", {},
    el("img", { src: `/api/photos/${photo.number}/thumbnail`, alt: "", loading: "lazy" }), photo.class));
  const name = nameInput("What it really is", answer.unknown ? "What is it?" : "No, it is …");
  const fix = el("form", { className: "fix" }, name, el("button", { type: "submit" }, "Teach"));
  fix.addEventListener("submit", (event) => {
    event.preventDefault();
    if (name.value.trim()) correct(answer, name.value.trim(), fix);
  });
  return el("article", { className: `answer${answer.unknown ? " unknown" : ""}` },
    el("img", { src: `/api/inbox/${answer.inbox}/thumbnail`, alt: answer.photo }),
    el("div", {}, el("h3", {}, answer.unknown ? "unknown" : answer.label),
      el("small", { className: "soft" }, `${answer.photo}: ${familiar}`), el("ol", {}, ...guesses)),
    el("div", { className: "near" }, el("small", { className: "soft" }, "because it looks like"), ...near), fix);
}

async function correct(answer, name, fix) {
  await attempt(async () => {
    const done = await post("/api/learn", { classes: { [name]: [answer.inbox] }, duplicates: "refuse" });
    fix.replaceChildren(el("span", { className: "soft" }, `Taught as ${name} (version ${done.version}).`));
    say(`Learned one photo of ${name}: version ${done.version}.`);
  });
}

// Ask about files, a few at a time, so that answers come as they are ready.
export async function ask(files, app) {
  const photos = [...files].filter((file) => file.type.startsWith("image/") || PICTURE.test(file.name));
  const skipped = files.length - photos.length;
  if (!photos.length) return say(files.length ? "There is no photo among these files." : "", true);
  const failures = [];
  const found = [];
  for (let at = 0; at < photos.length; at += AT_ONCE) {
    app.busy(true, at / photos.length);
    say(`Looking at ${many(photos.length, "photo")} …`);
    const form = new FormData();
    for (const photo of photos.slice(at, at + AT_ONCE)) form.append("photos", photo, photo.path || photo.webkitRelativePath || photo.name);
    const answer = await attempt(() => post("/api/predict?keep=all&nearest=4", form));
    if (answer === null) break;
    found.push(...answer.predictions);
    failures.push(...answer.failures);
    answers = [...found, ...answers.filter((old) => !found.some((one) => one.inbox === old.inbox))];
    app.open("answers");
  }
  app.busy(false, 1);
  const unknown = found.filter((answer) => answer.unknown).length;
  const words = [`${many(found.length, "photo")} answered, ${unknown} unknown.`];
  if (failures.length) words.push(`Could not be read: ${failures.slice(0, 3).join("; ")}${failures.length > 3 ? " …" : ""}.`);
  if (skipped) words.push(`Left out, for they are no photos: ${many(skipped, "file")}.`);
  if (found.length || failures.length) say(words.join(" "), failures.length > 0);
  await app.refresh();
  return found;
}

// All files of what was dropped, folders among them.
export async function dropped(items) {
  const files = [];
  async function walk(entry) {
    if (entry.isFile) {
      const file = await new Promise((done, failed) => entry.file(done, failed));
      files.push(Object.assign(file, { path: entry.fullPath }));
    }
    else if (entry.isDirectory) {
      const reader = entry.createReader();
      for (;;) {
        const some = await new Promise((done, failed) => reader.readEntries(done, failed));
        if (!some.length) break;
        for (const one of some) await walk(one);
      }
    }
  }
  const entries = [...items].map((item) => item.webkitGetAsEntry && item.webkitGetAsEntry()).filter(Boolean);
  for (const entry of entries) await walk(entry);
  return files;
}
