// Rounds, keys, themes and the address: what the reader does, and what then changes.

const element = (id) => document.getElementById(id);

const viewer = {
  current: -1,
  timer: null,

  go(index) {
    if (rounds.length === 0) return;
    const round = Math.min(Math.max(index, 0), rounds.length - 1);
    if (round === this.current || Number.isNaN(round)) return;
    this.current = round;
    overview.mark(round);
    textView.mark(round);
    this.draw();
    for (const [id, end] of [["first", 0], ["previous", 0], ["next", rounds.length - 1],
      ["last", rounds.length - 1]]) {
      element(id).disabled = round === end;
    }
    history.replaceState(null, "", `#round=${round + 1}`);
  },

  draw() {
    const round = rounds[this.current];
    if (!round) return;
    element("round-title").textContent = `Round ${this.current + 1} of ${rounds.length}`;
    element("round-story").textContent = story(round);
    treeView.draw(round);
    panels.width(round);
  },

  play(on) {
    clearInterval(this.timer);
    const start = on && this.current < rounds.length - 1;
    this.timer = start ? setInterval(() => {
      this.go(this.current + 1);
      if (this.current === rounds.length - 1) this.play(false);
    }, 700) : null;
    element("play").textContent = start ? "❚❚" : "▶";
    element("play").setAttribute("aria-pressed", String(Boolean(start)));
    element("play").setAttribute("aria-label", start ? "Stop" : "Play");
  },
};

// The round in a sentence.
function story(round) {
  const verified = round.num_verified - 1;
  const offered = round.tokens.length - 1;
  const emitted = round.emitted.length;
  const accepted = Math.min(round.path.length - 1, emitted);
  const parts = [];
  if (emitted === 0) return "no token: the target gave no distribution.";
  if (offered === 0) return "nothing was drafted: one token, from the target itself.";
  if (verified === 0) parts.push(`none of ${offered} offered tokens verified`);
  else {
    const of = offered > verified ? `, of ${offered} offered` : "";
    parts.push(`${accepted} of ${count(verified, "drafted token", "drafted tokens")} accepted${of}`);
  }
  if (emitted > accepted) parts.push("and one token from the target itself");
  else if (emitted < round.path.length) parts.push("and there the text ends");
  const { nodes } = nodesOf(round);
  if (nodes.some((node) => node.state === "missed")) parts.push("which had been offered, but not verified");
  return `${parts.join(", ")}.`;
}

function figures() {
  const box = element("figures");
  const add = (value, name) => box.append(make("div", "", make("dt", "", name), make("dd", "", value)));
  add(totals.perRound.toFixed(2), "tokens per round");
  add(String(totals.tokens), "tokens");
  add(String(totals.rounds), "rounds");
  if (totals.verified) {
    add((totals.verified / totals.rounds).toFixed(1), "nodes verified per round");
    add(`${(100 * totals.acceptance).toFixed(1)} %`, "of them accepted");
  }
}

function settings() {
  const box = element("settings");
  for (const [name, value] of Object.entries(data.settings)) {
    box.append(make("span", "setting", make("span", "name", `${name} `), value));
  }
  const ends = { eos: "the end token", limit: "the limit of new tokens", capacity: "a full context",
    nan: "logits that are no numbers" };
  const end = ends[data.trace.status];
  if (end) box.append(make("span", "setting", make("span", "name", "ended by "), end));
  element("help-rule").textContent = !sampled
    ? "This text was decoded greedily: at every position the target's likeliest token. A draft can only change how soon it is known."
    : coupled
      ? "This text was sampled. The token at a position is the one with the largest log p + noise, and the noise follows from the seed and the position alone: with any drafter, or none, the text is the same."
      : `This text was sampled under the rule “${data.trace.rule}”: drafted tokens are accepted such that the text is distributed as plain sampling's.`;
}

const themes = {
  order: ["auto", "light", "dark"],
  read() {
    try { return localStorage.getItem("jspec-trace-theme") ?? "auto"; } catch { return "auto"; }
  },
  set(theme) {
    const known = this.order.includes(theme) ? theme : "auto";
    document.documentElement.dataset.theme = known;
    element("theme").textContent = { auto: "◐", light: "☀", dark: "☾" }[known];
    element("theme").title = `Theme: ${known === "auto" ? "as the system's" : known}`;
    element("theme").setAttribute("aria-label", element("theme").title);
    try { localStorage.setItem("jspec-trace-theme", known); } catch { /* not kept */ }
  },
  // From the system's to the other one first: the first press always shows a change.
  next() {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const ring = dark ? ["auto", "light", "dark"] : ["auto", "dark", "light"];
    this.set(ring[(ring.indexOf(document.documentElement.dataset.theme) + 1) % 3]);
  },
};

function fromAddress() {
  const found = /^#round=(\d+)$/.exec(location.hash);
  if (found) viewer.go(Number(found[1]) - 1);
  return Boolean(found);
}

function help() {
  if (!element("help").open) element("help").showModal();
}

const KEYS = {
  ArrowLeft: () => viewer.go(viewer.current - 1),
  ArrowRight: () => viewer.go(viewer.current + 1),
  k: () => viewer.go(viewer.current - 1),
  j: () => viewer.go(viewer.current + 1),
  Home: () => viewer.go(0),
  End: () => viewer.go(rounds.length - 1),
  ArrowUp: () => treeView.move(-1),
  ArrowDown: () => treeView.move(1),
  p: () => viewer.play(viewer.timer === null),
  a: () => element("along").click(),
  o: () => element("offered").click(),
  t: () => themes.next(),
  "?": help,
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || element("help").open) return;
  // Up and down belong to the text while it is the text that scrolls.
  if (event.key.startsWith("Arrow") && event.target.closest("#text") && /Up|Down/.test(event.key)) return;
  const act = KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  if (event.key !== "p") viewer.play(false);
  act();
});

element("first").addEventListener("click", () => viewer.go(0));
element("previous").addEventListener("click", () => viewer.go(viewer.current - 1));
element("next").addEventListener("click", () => viewer.go(viewer.current + 1));
element("last").addEventListener("click", () => viewer.go(rounds.length - 1));
element("play").addEventListener("click", () => viewer.play(viewer.timer === null));
element("theme").addEventListener("click", () => themes.next());
element("help-open").addEventListener("click", help);
element("skip").addEventListener("click", (event) => {
  event.preventDefault();
  treeView.selected?.element.focus();
});
element("along").addEventListener("change", (event) => {
  treeView.along = event.target.checked;
  viewer.draw();
});
element("offered").addEventListener("change", (event) => {
  treeView.offered = event.target.checked;
  viewer.draw();
});
addEventListener("hashchange", fromAddress);

themes.set(themes.read());
element("offered").checked = offeredFits;
settings();
figures();
overview.draw();
textView.draw();
panels.totals();
if (rounds.length === 0) element("round-title").textContent = "No round";
else if (!fromAddress()) viewer.go(0);
