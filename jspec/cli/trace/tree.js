// The draft tree: root left, children right. A first child stands on its parent's line, so that the
// drafter's first choices read as a line of text; its siblings follow below in their order.

const treeView = {
  element: document.getElementById("tree"),
  scroll: document.getElementById("tree-scroll"),
  along: false,
  offered: offeredFits,
  nodes: [],
  selected: null,

  draw(round) {
    const { nodes, bonus } = nodesOf(round);
    // What would have been accepted is shown always: it is what the width has cost.
    const shown = (node) => this.offered || node.state !== "offered";
    const order = [];
    let rows = 0;
    // By hand and not by recursion: a chain may be long.
    const stack = [[nodes[0], false]];
    while (stack.length) {
      const [node, below] = stack.pop();
      if (below) rows += 1;
      node.row = rows;
      order.push(node);
      const children = node.children.filter(shown);
      for (let i = children.length - 1; i >= 0; i -= 1) stack.push([children[i], i > 0]);
    }
    this.nodes = order;
    this.all = [...nodes, bonus];
    const dense = rows > 22;
    const size = this.columns(order, dense
      ? { height: 22, row: 26, gap: 26, letter: 6.7, rest: 62 }
      : { height: 32, row: 40, gap: 34, letter: 7.6, rest: 72 });
    const width = size.left[size.left.length - 1] + size.width[size.width.length - 1] + 4;
    const height = size.row * rows + size.height + 4;
    this.element.replaceChildren();
    this.element.classList.toggle("dense", dense);
    this.element.style.width = `${width}px`;
    this.element.style.height = `${height}px`;
    // On paper nothing scrolls: a wide tree is made to fit, down to what can still be read.
    this.element.style.setProperty("--print-zoom", Math.max(0.25, Math.min(1, 690 / width)));
    this.element.append(this.edges(order, size, width, height));
    for (const node of order) this.element.append(this.node(node, size));
    const count = nodes.length - round.num_verified;
    document.getElementById("offered-count").textContent = count ? `(${count})` : "";
    document.getElementById("offered-option").hidden = count === 0;
    this.select(nodes[round.path[round.path.length - 1]], false);
    this.showPath(size);
  },

  // Every level is as wide as its longest token asks for.
  columns(order, size) {
    const letters = [];
    for (const node of order) {
      const own = runs(node.token).reduce((sum, run) => sum + [...run[1]].length, 0);
      letters[node.depth] = Math.max(letters[node.depth] ?? 3, Math.min(own, 14));
    }
    const width = letters.map((number) => Math.round(size.rest + size.letter * number));
    const left = width.map((_, i) => 4 + width.slice(0, i).reduce((sum, one) => sum + one + size.gap, 0));
    return { ...size, width, left };
  },

  edges(order, size, width, height) {
    const canvas = svg("svg", { width, height, "aria-hidden": "true", class: "edges" });
    const bends = Math.min(8, size.row / 2);
    const at = (node) => [size.left[node.depth], node.row * size.row + size.height / 2 + 2];
    const byParent = new Map(order.map((node) => [node.id, node]));
    const drawn = order.filter((node) => node.parent !== -1 && byParent.has(node.parent));
    const rank = (node) => ["offered", "missed", "rejected", "cut", "accepted", "bonus"]
      .indexOf(node.state);
    // Those on the path last, above the others.
    for (const node of drawn.sort((a, b) => rank(a) - rank(b))) {
      const [x0, y0] = at(byParent.get(node.parent));
      const [x, y] = at(node);
      const from = x0 + size.width[node.depth - 1];
      const turn = from + (x - from) * 0.4;
      const d = y === y0
        ? `M${from} ${y}H${x}`
        : `M${from} ${y0}H${turn - bends}Q${turn} ${y0} ${turn} ${y0 + bends}` +
          `V${y - bends}Q${turn} ${y} ${turn + bends} ${y}H${x}`;
      canvas.append(svg("path", { d, class: `edge ${node.state}` }));
    }
    return canvas;
  },

  node(node, size) {
    const button = make("div", `node ${node.state}`);
    if (node.state === "bonus" && !node.emitted) button.classList.add("unsaid");
    button.style.left = `${size.left[node.depth]}px`;
    button.style.top = `${node.row * size.row + 2}px`;
    button.style.width = `${size.width[node.depth]}px`;
    button.style.height = `${size.height}px`;
    button.setAttribute("role", "treeitem");
    button.setAttribute("aria-level", node.depth + 1);
    button.tabIndex = -1;
    const prob = this.along ? node.along : node.prob;
    const estimate = this.along ? node.estimate : node.given;
    const numbers = make("span", "numbers");
    if (node.state !== "root") {
      numbers.append(make("b", "prob", percent(prob)));
      if (node.state !== "bonus") numbers.append(make("span", "estimate", percent(estimate)));
    }
    const stripe = make("span", "stripe");
    if (node.origins.length) stripe.style.background = fill(node.origins, "to bottom");
    button.append(stripe, tokenElement(node.token), numbers);
    if (node.state !== "root") {
      const track = make("span", "track");
      if (typeof prob === "number") {
        const bar = make("span", "bar");
        bar.style.width = `${100 * prob}%`;
        track.append(bar);
      }
      if (typeof estimate === "number") {
        const tick = make("span", "tick");
        tick.style.left = `${100 * estimate}%`;
        track.append(tick);
      }
      button.append(track);
    }
    if (node.state === "accepted" && node.origins.length) {
      button.style.setProperty("--tint", fill(node.origins));
    }
    button.setAttribute("aria-label", this.words(node));
    button.title = this.words(node);
    button.addEventListener("click", () => this.select(node, true));
    node.element = button;
    return button;
  },

  words(node) {
    const parts = [tokenWords(node.token), STATES[node.state]];
    if (node.state !== "root" && node.prob !== null) parts.push(`target ${precise(node.prob)}`);
    if (typeof node.given === "number") parts.push(`estimate ${precise(node.given)}`);
    if (node.origins.length) parts.push(`from ${list(node.origins.map((o) => origins[o]))}`);
    return parts.join(", ");
  },

  select(node, focus) {
    if (this.selected && this.selected.element) {
      this.selected.element.classList.remove("selected");
      this.selected.element.setAttribute("aria-selected", "false");
      this.selected.element.tabIndex = -1;
    }
    this.selected = node;
    node.element.classList.add("selected");
    node.element.setAttribute("aria-selected", "true");
    node.element.tabIndex = 0;
    if (focus) node.element.focus();
    panels.node(rounds[viewer.current], node, this.all);
  },

  // To the next token of the tree in drawing order.
  move(step) {
    const place = this.nodes.indexOf(this.selected) + step;
    if (this.nodes[place]) this.select(this.nodes[place], true);
  },

  // Scrolls so that the end of the accepted path can be seen; the page itself stays where it is.
  showPath(size) {
    const end = this.nodes.filter((node) => node.state === "bonus")[0];
    const box = this.scroll;
    const right = size.left[end.depth] + size.width[end.depth] + 24;
    const bottom = end.row * size.row + size.height + 24;
    box.scrollLeft = Math.max(0, right - box.clientWidth);
    box.scrollTop = Math.max(0, bottom - box.clientHeight);
  },
};
