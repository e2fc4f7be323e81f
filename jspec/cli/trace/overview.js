// The strip of all rounds, and the text as it grows: both are drawn once, and then only marked.

const overview = {
  strip: document.getElementById("strip"),

  draw() {
    const canvas = document.getElementById("strip-bars");
    const most = Math.max(...rounds.map((round) => round.emitted.length), 1);
    canvas.setAttribute("viewBox", `0 0 ${Math.max(rounds.length, 1)} ${most}`);
    document.getElementById("strip-max").textContent = String(most);
    // One path a colour, so that thousands of rounds are still a handful of elements.
    const shapes = new Map();
    const rise = Array(rounds.length).fill(0);
    const gap = rounds.length < 400 ? 0.14 : 0;
    for (const { round, origins: from } of emissions) {
      const parts = from.length ? from.map(colour) : ["var(--own)"];
      const width = (1 - gap) / parts.length;
      const y = most - rise[round] - 1;
      rise[round] += 1;
      parts.forEach((part, i) => {
        const x = round + gap / 2 + i * width;
        shapes.set(part, `${shapes.get(part) ?? ""}M${x.toFixed(3)} ${y + 0.06}h${width.toFixed(3)}v0.88h${-width.toFixed(3)}z`);
      });
    }
    for (const [part, d] of shapes) {
      const path = svg("path", { d });
      path.style.fill = part;
      canvas.append(path);
    }
    this.strip.setAttribute("aria-valuemax", rounds.length);
    const to = (event) => {
      const box = this.strip.getBoundingClientRect();
      const place = Math.floor(((event.clientX - box.left) / box.width) * rounds.length);
      viewer.go(place);
    };
    this.strip.addEventListener("pointerdown", (event) => {
      this.strip.setPointerCapture(event.pointerId);
      to(event);
    });
    this.strip.addEventListener("pointermove", (event) => {
      if (this.strip.hasPointerCapture(event.pointerId)) to(event);
    });
    const legend = document.getElementById("legend");
    drafting.forEach((i) => legend.append(make("li", "", swatch([i]), origins[i])));
    legend.append(make("li", "", swatch([]), "the target itself"));
  },

  mark(current) {
    const cursor = document.getElementById("strip-cursor");
    const share = 100 / rounds.length;
    cursor.style.left = `${current * share}%`;
    cursor.style.width = `${share}%`;
    this.strip.setAttribute("aria-valuenow", current + 1);
    this.strip.setAttribute("aria-valuetext",
      `Round ${current + 1}: ${count(rounds[current].emitted.length, "token", "tokens")}`);
  },
};

const textView = {
  element: document.getElementById("text"),
  groups: [],

  draw() {
    this.element.append(make("span", "prompt", data.prompt_text));
    for (let index = 0, at = 0; index < rounds.length; index += 1) {
      const group = make("span", "group");
      group.dataset.round = index;
      for (; at < emissions.length && emissions[at].round === index; at += 1) {
        const { origins: from } = emissions[at];
        const token = make("span", from.length ? "t drafted" : "t own");
        if (from.length) token.style.setProperty("--fill", fill(from));
        token.title = `Round ${index + 1}: ${from.length
          ? `offered by ${list(from.map((o) => origins[o]))}` : "the target's own token"}`;
        // What has a name and no text, such as an end token, is no part of the text that is copied.
        const sign = data.strings[emissions[at].token]?.sign;
        if (sign && !data.pieces[at]) token.dataset.sign = sign;
        // A line break is shown where it stands, and breaks the line.
        for (const part of data.pieces[at].split(/(\n)/)) {
          if (part === "\n") token.append(make("span", "newline"), "\n");
          else if (part) token.append(part);
        }
        group.append(token);
      }
      this.groups.push(group);
      this.element.append(group);
    }
    this.element.addEventListener("click", (event) => {
      const group = event.target.closest(".group");
      if (group) viewer.go(Number(group.dataset.round));
    });
  },

  mark(current) {
    this.groups.forEach((group, index) => {
      group.classList.toggle("current", index === current);
      group.classList.toggle("future", index > current);
    });
    const box = this.element;
    const group = this.groups[current];
    const place = group.offsetTop - box.offsetTop;
    if (place < box.scrollTop || place + group.offsetHeight > box.scrollTop + box.clientHeight - 24) {
      box.scrollTop = Math.max(0, place - box.clientHeight / 2);
    }
  },
};
