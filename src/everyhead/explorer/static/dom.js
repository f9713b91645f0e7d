// Building the page: every text becomes a text node, never markup and never an attribute.

const SVG = "http://www.w3.org/2000/svg";

/** An element. `set` holds attributes from this program alone (never a token), on… are listeners. */
export function el(tag, set = {}, ...children) {
  return fill(document.createElement(tag), set, children);
}

export function svg(tag, set = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), set, children);
}

function fill(node, set, children) {
  for (const [name, value] of Object.entries(set)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** A token as it is: isolated from the direction of its neighbours, blanks kept. */
export function token(text, kind = "tok") {
  const node = el("bdi", { class: kind });
  node.textContent = text;
  if (text === "") node.classList.add("empty");
  else if (/^\s+$/u.test(text)) node.classList.add("blank");
  return node;
}

/** A drop-down; `options` are [value, text] pairs, texts are shown as text. */
export function choice(label, options, value, change) {
  const list = el("select", { onchange: () => change(list.value) });
  for (const [key, text] of options) {
    const option = el("option", { value: key });
    option.textContent = text;
    option.selected = String(key) === String(value);
    list.append(option);
  }
  return el("label", { class: "choice" }, el("span", {}, label), list);
}

export function toggle(label, checked, change) {
  const box = el("input", { type: "checkbox", onchange: () => change(box.checked) });
  box.checked = checked;
  return el("label", { class: "toggle" }, box, el("span", {}, label));
}

export function button(label, press, set = {}) {
  return el("button", { type: "button", onclick: press, ...set }, label);
}

/** A text only for those who hear the page. */
export function heard(text) {
  return el("span", { class: "heard" }, text);
}

/** A token on a button; one without letters has a name that is heard. */
export function namedToken(text, name) {
  return [token(text), text.trim() === "" ? heard(name) : null];
}

export function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size >= 10000 || (size > 0 && size < 10 ** -digits)) return value.toPrecision(2);
  return value.toFixed(digits);
}

/** Speak to screen readers what changed. */
export function announce(text) {
  const place = document.getElementById("announcer");
  if (place) place.textContent = text;
}
