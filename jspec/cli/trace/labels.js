// Words and numbers: tokens made visible, probabilities in per cent, and elements to put them in.

const SYMBOLS = { " ": "·", "\n": "↵", "\t": "⇥", "\r": "␍" };
const HIDDEN = /^[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Co}\p{Cn}\p{Cs}\u00a0\u2000-\u200f\u202f\u205f\u3000]$/u;

// An element with a class and children; strings become text, never markup.
function make(tag, name, ...children) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function svg(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// The token's text as runs of [kind, text]: plain text, and signs for what cannot be seen.
function runs(token) {
  const label = data.strings[token];
  if (label === undefined) return [["sign", `#${token}`]];
  if (typeof label !== "string") return [["special", label.sign ?? label.bytes]];
  const found = [];
  const add = (kind, text) => {
    const last = found[found.length - 1];
    if (last && last[0] === kind) last[1] += text;
    else found.push([kind, text]);
  };
  const spaces = /^ {5,}/.exec(label);
  if (spaces) add("sign", `·×${spaces[0].length}`);
  for (const character of spaces ? label.slice(spaces[0].length) : label) {
    if (SYMBOLS[character]) add("sign", SYMBOLS[character]);
    else if (HIDDEN.test(character)) {
      add("special", `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`);
    } else add("plain", character);
  }
  return found.length ? found : [["special", "∅"]];
}

function tokenElement(token, name = "token") {
  const element = make("span", name);
  element.dir = "ltr";
  for (const [kind, text] of runs(token)) {
    element.append(kind === "plain" ? make("bdi", "", text) : make("span", kind, text));
  }
  return element;
}

function tokenWords(token) {
  const label = data.strings[token];
  if (typeof label !== "string") return runs(token).map((run) => run[1]).join("");
  const names = { " ": "space", "\n": "new line", "\t": "tab" };
  return names[label] ?? `“${label}”`;
}

// Per cent in at most three characters: 100, 62, 3.1, .4, 0.
function percent(prob) {
  if (prob === null || prob === undefined) return "–";
  const value = 100 * prob;
  if (value >= 9.95) return value.toFixed(0);
  if (value >= 0.95) return value.toFixed(1).replace(/\.0$/, "");
  if (value >= 0.05) return value.toFixed(1).replace(/^0/, "");
  return "0";
}

function precise(prob) {
  if (prob === null || prob === undefined) return "–";
  const value = 100 * prob;
  return value >= 0.01 || value === 0 ? `${Number(value.toPrecision(3))} %` : "< 0.01 %";
}

function short(value, digits = 3) {
  return value === null ? "–" : String(Number(value.toPrecision(digits)));
}

const signed = (value) => value.toFixed(2).replace("-", "−");

function seconds(value) {
  if (value === null) return "–";
  return value < 1 ? `${short(1000 * value)} ms` : `${short(value)} s`;
}

function count(number, one, many) {
  return `${number} ${number === 1 ? one : many}`;
}

function list(words) {
  if (words.length < 2) return words.join("");
  return `${words.slice(0, -1).join(", ")} and ${words[words.length - 1]}`;
}

// The colour of an origin; there are eight, and a ninth drafter starts again.
const colour = (origin) => `var(--origin-${origin % 8})`;

// A picture with equal parts of the colours of all origins; the target's own has a grey.
function fill(from, direction = "to right") {
  const colours = from.length ? from.map(colour) : ["var(--own)"];
  const part = 100 / colours.length;
  const stops = colours.map((one, i) => `${one} ${i * part}% ${(i + 1) * part}%`);
  return `linear-gradient(${direction}, ${stops.join(", ")})`;
}
