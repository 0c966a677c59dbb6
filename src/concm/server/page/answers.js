// Asking: photos that are dropped, chosen or taken, and what the classifier says of them.
import { attempt, change, el, learned, many, nameInput, percent, post, say } from "/static/tools.js";

const AT_ONCE = 8;
const BYTES_AT_ONCE = 100e6;
const PICTURE = /\.(jpe?g|jfif|png|webp|gif|bmp|tiff?|avif|hei[cf]|jp2|ppm)$/i;
let answers = [];
let scattered = "";

export function show(view, app) {
  if (!answers.length) {
    return view.replaceChildren(el("div", { className: "empty" },
      el("p", {}, "Drop photos on this page, choose some, or use the camera: the answers come here."),
      el("p", {}, "Nothing leaves this machine.")));
  }
  const clear = el("button", { type: "button", onclick: () => { answers = []; scattered = ""; app.open("answers"); } }, "Clear");
  const again = el("button", { type: "button", id: "again", onclick: () => askAgain(app) }, "Ask again");
  const unknown = answers.filter((answer) => answer.unknown).length;
  const words = `${many(answers.length, "answer")}${unknown ? `, ${unknown} unknown` : ""}`;
  view.replaceChildren(el("div", { className: "bar" }, el("strong", {}, words), byFolder(app), el("span", { className: "spacer" }), again, clear),
    el("div", { className: "grid wide" }, ...answers.map((answer) => card(answer))));
  aged(app.status?.version);
}

const askAgain = (app) => ask(answers.map((answer) => answer.file).filter(Boolean), app);

// Offer to ask again where answers are of another version than the newest, without disturbing who is typing.
export function aged(version) {
  const again = document.getElementById("again");
  if (again) again.hidden = answers.every((answer) => answer.version === version);
}

// Photos that came in folders can be taught as classes, all in one version; the button names them.
function byFolder(app) {
  const classes = new Map();
  for (const { folder, inbox } of answers) if (folder) classes.set(folder, [...(classes.get(folder) || []), inbox]);
  if (!classes.size) return scattered ? el("small", { className: "soft" }, scattered) : null;
  const words = [...classes].map(([name, own]) => `${name} (${own.length})`);
  const some = words.length > 5 ? [...words.slice(0, 4), `${words.length - 4} more`] : words;
  return el("button", { type: "button", title: words.join(", "), onclick: () => {
    say("Learning …");
    change("/api/learn", { classes: Object.fromEntries(classes) }, async (done) => {
      await app.refresh();
      await askAgain(app);
      for (const answer of answers) delete answer.folder;
      app.open("answers");
      say(learned(done));
    });
  } }, `Teach by folder: ${some.join(", ")}`);
}

// Why the folders of photos cannot all be classes: they have to lie side by side.
function layout(photos) {
  const folders = [...new Set(photos.map((photo) => path(photo).split("/").slice(0, -1).join("/")))].filter(Boolean);
  const above = (folder) => folder.split("/").slice(0, -1).join("/");
  const other = folders.find((folder) => above(folder) !== above(folders[0]));
  return other === undefined ? "" : `These folders are no classes, for they do not lie side by side: ${folders[0]} and ${other}.`;
}

const path = (photo) => photo.path || photo.webkitRelativePath || photo.name;

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

function correct(answer, name, fix) {
  return change("/api/learn", { classes: { [name]: [answer.inbox] } }, (done) => {
    const words = done.changed ? `Taught as ${name} (version ${done.version}).` : `It is a photo of ${name} already.`;
    fix.replaceChildren(el("span", { className: "soft" }, words));
    say(learned(done));
  });
}

// Ask about files, a few at a time, so that answers come as they are ready; what fails keeps no other from its answer.
export async function ask(files, app) {
  const photos = [...files].filter((file) => file.type.startsWith("image/") || PICTURE.test(file.name));
  const skipped = files.length - photos.length;
  if (!photos.length) return say("There is no photo among what was given.", true);
  const reasons = new Set();
  const before = app.status?.inbox_dropped;
  const found = [];
  let done = 0;
  let unseen = 0;
  scattered = layout(photos);
  for (const batch of batches(photos)) {
    app.busy(true, done / photos.length);
    say(`Looking at ${many(photos.length, "photo")} …`);
    const form = new FormData();
    for (const photo of batch) form.append("photos", photo, path(photo));
    try {
      const { predictions, failures } = await post("/api/predict?keep=all&nearest=4", form);
      if (scattered) for (const answer of predictions) delete answer.folder;
      const files = new Map(batch.map((photo) => [photo.name, photo]));
      predictions.forEach((answer, at) => { answer.file = failures.length ? files.get(answer.photo) : batch[at]; });
      found.push(...predictions);
      for (const why of failures) reasons.add(why);
      unseen += failures.length;
      answers = [...found, ...answers.filter((old) => !found.some((one) => one.inbox === old.inbox))];
      app.open("answers");
    } catch (error) {
      reasons.add(error.message);
      unseen += batch.length;
    }
    done += batch.length;
  }
  app.busy(false, 1);
  const unknown = found.filter((answer) => answer.unknown).length;
  const words = [`${many(found.length, "photo")} answered, ${unknown} unknown.`];
  if (skipped) words.push(`Left out, for they are no photos: ${many(skipped, "file")}.`);
  if (unseen) words.push(`Not looked at: ${many(unseen, "photo")}: ${[...reasons].slice(0, 3).join("; ")}${reasons.size > 3 ? " …" : "."}`);
  await attempt(() => app.refresh());
  const gone = app.status?.inbox_dropped - before;
  if (gone > 0) words.push(`The inbox was full: ${many(gone, "older photo that waited was", "older photos that waited were")} dropped.`);
  say(words.join(" "), unseen > 0 || gone > 0);
  return found;
}

// So many photos at a time as one request may have.
function batches(photos) {
  const found = [];
  let bytes = 0;
  for (const photo of photos) {
    bytes += photo.size;
    if (!found.length || found.at(-1).length === AT_ONCE || bytes > BYTES_AT_ONCE) {
      found.push([]);
      bytes = photo.size;
    }
    found.at(-1).push(photo);
  }
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
  // All at once, since what was dropped is gone after the first wait; what is no entry of a file system may be a file.
  const found = [...items].filter((item) => item.kind === "file").map((item) => item.webkitGetAsEntry?.() ?? item.getAsFile());
  for (const one of found) {
    if (one instanceof File) files.push(one);
    else if (one) await walk(one);
  }
  return files;
}
