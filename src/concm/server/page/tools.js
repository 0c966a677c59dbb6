// Elements, requests and selections that all views share. Text is only ever set as text, never as markup.

export function el(tag, options = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name in node && name !== "list") node[name] = value;
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

let csrf = "";

async function read(response) {
  const kind = response.headers.get("content-type") || "";
  const body = kind.includes("json") ? await response.json() : {};
  if (response.status === 401) throw new Error("The server was started anew: open the address that it printed.");
  if (!response.ok && !body.predictions) throw refused(body, `The server said ${response.status}.`);
  if (body.state === "failed") throw refused(body);
  return body;
}

const refused = ({ error, choice }, otherwise) => Object.assign(new Error(error || otherwise), { choice });

export async function get(path) {
  return read(await fetch(path));
}

export async function post(path, body) {
  if (!csrf) csrf = (await get("/api/session")).csrf;
  const form = body instanceof FormData;
  const headers = form ? {} : { "Content-Type": "application/json" };
  headers["X-CSRF-Token"] = csrf;
  const answer = await read(await fetch(path, { method: "POST", headers, body: form ? body : JSON.stringify(body) }));
  return answer.state === "waiting" || answer.state === "running" ? finished(answer.job) : answer;
}

async function finished(job) {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, 500));
    const answer = await get(`/api/jobs/${job}`);
    if (answer.state === "done") return answer;
  }
}

export function say(text, wrong = false, ...more) {
  const place = document.getElementById("said");
  place.replaceChildren(text, ...more);
  place.classList.toggle("wrong", wrong);
}

// Run something that may fail, and say so where everybody looks.
export async function attempt(work) {
  try {
    return await work();
  } catch (error) {
    say(error.message || String(error), true);
    return null;
  }
}

// What somebody may answer where the server asks back, by the field that says so.
const ANSWERS = { similar_names: "Keep it as a class of its own", duplicates: "Leave those out" };

// Ask for a change; where the server asks back, its sentence comes with a button that answers.
export async function change(path, body, done) {
  try {
    await done(await post(path, body));
  } catch (error) {
    const [field, value] = Object.entries(error.choice || {})[0] || [];
    const words = ANSWERS[field];
    if (!words) return say((error.message || String(error)).replace("`/api/photos/move`", "“Move” under Classes"), true);
    const again = el("button", { type: "button", onclick: () => change(path, { ...body, [field]: value }, done) }, words);
    say(`${error.message.replace(/`"[a-z_]+": "[a-z]+"`/, `“${words}”`)} `, true, again);
  }
}

// What came of teaching, in sentences.
export function learned({ changed, detail, version, remarks }) {
  const first = changed ? `Learned ${detail}: version ${version}.` : "Nothing was changed.";
  return [first, ...remarks.map((words) => `${words[0].toUpperCase()}${words.slice(1)}.`)].join(" ");
}

export const percent = (share) => `${Math.round(100 * share)}\u00a0%`;
export const many = (count, one, more = `${one}s`) => `${count} ${count === 1 ? one : more}`;

// A grid of photos to tick, with the keys of a grid: arrows move, space ticks, shift ticks all in between.
export function grid(cards) {
  const list = el("ul", { className: "grid" }, ...cards.map((card) => el("li", {}, card)));
  let last = null;
  const boxes = () => [...list.querySelectorAll("input[type=checkbox]")];
  list.addEventListener("keydown", (event) => {
    const all = boxes();
    const at = all.indexOf(document.activeElement);
    if (at < 0) return;
    const across = Math.max(1, Math.round(list.clientWidth / list.firstChild.getBoundingClientRect().width));
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across }[event.key];
    if (!step) return;
    event.preventDefault();
    all[Math.min(all.length - 1, Math.max(0, at + step))].focus();
  });
  list.addEventListener("click", (event) => {
    if (!event.target.matches("input[type=checkbox]")) return;
    const all = boxes();
    const [from, to] = [all.indexOf(last), all.indexOf(event.target)];
    if (event.shiftKey && from >= 0) {
      for (const box of all.slice(Math.min(from, to), Math.max(from, to) + 1)) {
        if (box.checked !== event.target.checked) box.click();
      }
    }
    last = event.target;
  });
  return list;
}

export function tile(source, number, chosen, changed, ...text) {
  const box = el("input", { type: "checkbox", checked: chosen.has(number), value: number });
  box.addEventListener("change", () => {
    if (box.checked) chosen.add(number);
    else chosen.delete(number);
    changed();
  });
  const alt = text.length ? "" : "photo";
  return el("label", { className: "card" }, box, el("img", { src: source, alt, loading: "lazy" }),
    el("div", { className: "text" }, ...text));
}

export function nameInput(label, placeholder) {
  return el("input", { type: "text", list: "names", placeholder, "aria-label": label, maxLength: 100, autocomplete: "off" });
}
