// The trace as the page needs it: nodes with children and states, totals of all rounds.

const data = JSON.parse(document.getElementById("data").textContent);
const rounds = data.trace.rounds;
const origins = data.trace.origins;
const sampled = rounds.some((round) => round.candidate_noise !== null);
const coupled = data.trace.rule === "coupled";

const STATES = {
  root: "the last token of the round before",
  accepted: "verified and accepted",
  cut: "verified and accepted, but behind the end of the text",
  rejected: "verified and not accepted",
  offered: "offered, not verified",
  missed: "offered, not verified; it would have been accepted",
  bonus: "the target's own token",
};

// The nodes of a round in drawing order. The target's own token is one of them, with the id "bonus".
function nodesOf(round) {
  const accepted = new Set(round.path);
  const emitted = round.emitted.length;
  const last = round.path[round.path.length - 1];
  const nodes = round.tokens.map((token, id) => ({
    id,
    token,
    parent: round.parents[id],
    origins: bits(round.origins[id]),
    prob: round.probs[id],
    estimate: round.estimates[id],
    children: [],
    depth: 0,
  }));
  for (const node of nodes) {
    if (node.id === 0) {
      node.state = "root";
      node.along = 1;
      continue;
    }
    const above = nodes[node.parent];
    above.children.push(node);
    node.depth = above.depth + 1;
    node.along = node.prob === null ? null : node.prob * above.along;
    const given = above.id === 0 ? 1 : above.estimate;
    node.given =
      node.estimate === null || given === null ? null
        : given > 0 ? Math.min(node.estimate / given, 1) : 0;
    if (accepted.has(node.id)) {
      node.state = node.depth <= emitted ? "accepted" : "cut";
    } else if (node.id < round.num_verified) {
      node.state = "rejected";
    } else {
      node.state = node.parent === last && node.token === round.bonus ? "missed" : "offered";
    }
  }
  const above = nodes[last];
  const bonus = {
    id: "bonus",
    token: round.bonus,
    parent: last,
    origins: [],
    prob: round.bonus_prob,
    along: round.bonus_prob === null ? null : round.bonus_prob * above.along,
    estimate: null,
    given: null,
    children: [],
    depth: above.depth + 1,
    state: "bonus",
    emitted: emitted > above.depth,
  };
  // First among its siblings, so that the text of the round reads as one line.
  above.children.unshift(bonus);
  return { nodes, bonus };
}

function bits(number) {
  return origins.map((_, i) => i).filter((i) => Math.floor(number / 2 ** i) % 2 === 1);
}

// For every emitted token: its round, and the drafters that offered it (none: the target's own).
const emissions = [];
rounds.forEach((round, index) => {
  round.emitted.forEach((token, place) => {
    const node = round.path[place + 1];
    const drafted = node !== undefined;
    emissions.push({ token, round: index, origins: drafted ? bits(round.origins[node]) : [] });
  });
});

// Whether what was only offered is shown at first: not where it would hide what was verified.
const offeredFits = (() => {
  const spare = rounds.map((round) => round.tokens.length - round.num_verified)
    .filter((number) => number > 0).sort((a, b) => a - b);
  return !(spare[Math.floor(spare.length / 2)] > 40);
})();

const totals = (() => {
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const lengths = rounds.map((round) => round.emitted.length);
  const own = emissions.filter((one) => one.origins.length === 0).length;
  const histogram = Array(Math.max(...lengths, 1)).fill(0);
  for (const length of lengths) if (length > 0) histogram[length - 1] += 1;
  const verified = sum(rounds.map((round) => round.num_verified - 1));
  const byOrigin = origins.map((name, i) => {
    const has = (number) => Math.floor(number / 2 ** i) % 2 === 1;
    return {
      name,
      offered: sum(rounds.map((round) => round.origins.filter(has).length)),
      verified: sum(
        rounds.map((round) => round.origins.slice(0, round.num_verified).filter(has).length),
      ),
      accepted: emissions.filter((one) => one.origins.includes(i)).length,
      alone: emissions.filter((one) => one.origins.length === 1 && one.origins[0] === i).length,
    };
  });
  const tokens = emissions.length;
  return {
    tokens,
    rounds: rounds.length,
    accepted: tokens - own,
    own,
    verified,
    histogram,
    byOrigin,
    perRound: rounds.length ? tokens / rounds.length : 0,
    acceptance: verified ? (tokens - own) / verified : null,
  };
})();

// The origins to speak of: plain decoding has a drafter too, which offers nothing.
const drafting = origins.map((_, i) => i)
  .filter((i) => origins.length > 1 || totals.byOrigin[i].offered > 0);
