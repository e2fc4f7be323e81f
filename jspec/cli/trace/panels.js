// The panels beside the tree: one token, the target's distribution, the width, and all rounds.

const panels = {
  node(round, node, all) {
    const box = document.getElementById("node");
    const byId = new Map(all.map((one) => [one.id, one]));
    const words = [];
    for (let at = node; at && at.state !== "root"; at = byId.get(at.parent)) words.unshift(at.token);
    const state = node.state === "bonus" && !node.emitted
      ? "the target's own token, behind the end of the text" : STATES[node.state];
    box.replaceChildren(
      make("p", `big ${node.state}`, tokenElement(node.token)),
      make("p", "state", state),
    );
    const rows = [];
    if (node.state !== "root") {
      const path = make("span", "path");
      for (const token of words) path.append(tokenElement(token));
      rows.push(["path", path]);
      rows.push(["target", `${precise(node.prob)}${node.depth > 1 ? `, path ${precise(node.along)}` : ""}`]);
    }
    if (typeof node.given === "number") {
      rows.push(["estimate",
        `${precise(node.given)}${node.depth > 1 ? `, path ${precise(node.estimate)}` : ""}`]);
    }
    if (node.origins.length) {
      const from = make("span", "from");
      for (const origin of node.origins) from.append(make("span", "origin", swatch([origin]), origins[origin]), " ");
      rows.push(["offered by", from]);
    }
    rows.push(["token id", String(node.token)]);
    box.append(definitions(rows));
    this.target(round, node, all);
  },

  // The likeliest tokens after a node, and under sampling the noise that decides among them.
  target(round, node, all) {
    const box = document.getElementById("target");
    const heading = document.getElementById("target-heading");
    heading.replaceChildren("What the target says after ", tokenElement(node.token));
    if (node.id === "bonus" || node.id >= round.num_verified) {
      box.replaceChildren(make("p", "note", node.id === "bonus"
        ? "The next round begins with this token and asks the target then."
        : "The target was not asked: the node was not verified."));
      return;
    }
    const noise = sampled && coupled ? round.candidate_noise[node.id] : null;
    const probs = round.candidate_probs[node.id];
    const drafted = new Map(all.filter((one) => one.parent === node.id && one.id !== "bonus")
      .map((one) => [one.token, one]));
    const seen = new Set();
    let rows = round.candidates[node.id].map((token, i) => ({
      token,
      prob: probs[i],
      noise: noise ? noise[i] : null,
      sum: noise && probs[i] > 0 ? Math.log(probs[i]) + noise[i] : -Infinity,
    })).filter((row) => !seen.has(row.token) && seen.add(row.token) && row.prob !== 0);
    const best = noise ? Math.max(...rows.map((row) => row.sum)) : null;
    const winner = noise ? rows.find((row) => row.sum === best) : sampled ? null : rows[0];
    rows = rows.sort((a, b) => b.prob - a.prob);
    const table = make("table", "candidates");
    const head = make("tr", "", ...[["token", ""], ["p", "barred"],
      ...(noise ? [["noise", "number"], ["log p + noise", "barred"]] : [])]
      .map(([word, name]) => header(word, name)));
    table.append(make("thead", "", head));
    const body = make("tbody");
    const low = Math.min(...rows.map((row) => row.sum).filter(Number.isFinite));
    for (const row of rows) {
      const line = make("tr", row === winner ? "winner" : "");
      const child = drafted.get(row.token);
      const name = make("th", "", tokenElement(row.token));
      name.scope = "row";
      if (child) {
        const mark = swatch(child.origins);
        mark.title = `offered by ${list(child.origins.map((o) => origins[o]))}`;
        name.append(" ", mark);
      }
      line.append(name, bar(row.prob ?? 0, precise(row.prob)));
      if (noise) {
        const size = best > low ? (row.sum - low) / (best - low) : 1;
        line.append(
          make("td", "number", signed(row.noise)),
          bar(Number.isFinite(size) ? 0.04 + 0.96 * size : 0, signed(row.sum), "sum"),
        );
      }
      body.append(line);
    }
    table.append(body);
    const note = noise
      ? "The largest log p + noise is the token. The noise belongs to the seed and the position, so no draft can change it: the text is that of plain sampling."
      : sampled ? `The rule “${data.trace.rule}” decides about drafted tokens, with draws of its own.`
        : "Greedy: the likeliest token is the one.";
    box.replaceChildren(table, make("p", "note", note));
  },

  width(round) {
    const box = document.getElementById("width");
    const verified = round.num_verified - 1;
    if (!round.choice) {
      const offered = round.tokens.length - 1;
      const which = offered > verified ? `the best of ${offered} that were offered` : "all that were offered";
      box.replaceChildren(make("p", "note", verified
        ? `Fixed: ${count(verified, "node was", "nodes were")} verified, ${which}.`
        : "Nothing was offered, so nothing but the root was verified."));
      return;
    }
    const { widths, index, expected_tokens: tokens, seconds: cost } = round.choice;
    const rate = widths.map((_, i) => tokens[i] / cost[i]);
    const most = Math.max(...rate.filter(Number.isFinite));
    const table = make("table", "widths");
    table.append(make("thead", "", make("tr", "",
      header("nodes", "number"), header("expected tokens", "number"), header("time", "number"),
      header("tokens per second", "barred"))));
    const body = make("tbody");
    widths.forEach((width, i) => {
      const name = make("th", "number", String(width));
      name.scope = "row";
      body.append(make("tr", i === index ? "winner" : "", name,
        make("td", "number", short(tokens[i])),
        make("td", "number", seconds(cost[i])),
        bar(rate[i] / most, short(rate[i]))));
    });
    table.append(body);
    const plain = rate[index] / rate[0];
    const why = rate[index] === most ? ", with the most expected tokens per second" : "";
    const gain = widths[0] === 0 && index > 0 && Number.isFinite(plain)
      ? `: ${plain.toFixed(2)} times what plain decoding promised` : "";
    box.replaceChildren(
      make("p", "note", `Chosen: ${count(widths[index], "node", "nodes")}${why}${gain}.`),
      table,
    );
  },

  totals() {
    const box = document.getElementById("totals");
    const table = make("table", "origins");
    table.append(make("thead", "", make("tr", "",
      header("tokens from", ""),
      ...["text", "verified", "offered"].map((word) => header(word, "number")))));
    const body = make("tbody");
    const line = (from, name, ...cells) => {
      const head = make("th", "", swatch(from), name);
      head.scope = "row";
      body.append(make("tr", "", head, ...cells.map((cell) => make("td", "number", cell))));
    };
    drafting.map((i) => [i, totals.byOrigin[i]]).forEach(([i, one]) =>
      line([i], one.name, String(one.accepted), String(one.verified), String(one.offered)));
    line([], "the target itself", String(totals.own), "", "");
    table.append(body);
    const several = emissions.filter((one) => one.origins.length > 1).length;
    box.replaceChildren(histogram(totals.histogram), table);
    if (several) {
      box.append(make("p", "note",
        `${count(several, "token was", "tokens were")} offered by several at once, and count${several === 1 ? "s" : ""} for each.`));
    }
  },
};

function header(word, name) {
  const cell = make("th", name, word);
  cell.scope = "col";
  return cell;
}

function bar(share, words, name = "") {
  const inner = make("span", "bar");
  inner.style.width = `${Math.max(0, Math.min(100, 100 * share))}%`;
  return make("td", `barred ${name}`, make("span", "amount", words), make("span", "track", inner));
}

function swatch(from) {
  const mark = make("span", "swatch");
  mark.style.background = fill(from);
  return mark;
}

function definitions(rows) {
  const box = make("dl", "facts");
  for (const [name, value] of rows) box.append(make("dt", "", name), make("dd", "", value));
  return box;
}

function histogram(counts) {
  const most = Math.max(...counts, 1);
  const box = make("div", "histogram");
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", `Rounds by tokens: ${counts
    .map((number, i) => `${count(i + 1, "token", "tokens")} in ${count(number, "round", "rounds")}`)
    .join(", ")}`);
  counts.forEach((number, i) => {
    const column = make("div", "column");
    const inner = make("span", "bar");
    inner.style.height = `${(100 * number) / most}%`;
    column.append(make("span", "amount", number ? String(number) : ""), make("span", "rise", inner),
      make("span", "name", String(i + 1)));
    box.append(column);
  });
  return make("figure", "", box, make("figcaption", "", "rounds by the tokens that they emitted"));
}
