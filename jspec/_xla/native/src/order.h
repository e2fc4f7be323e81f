// The order in which the tokens of a row are walked through: each behind its parent, depth first.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels.h"

namespace jspec {

// What a mask says of a row's tokens, and the walk through them.
struct Order {
  // Of each token the one before it: -1 for the committed ones. So it is for a token that is not
  // there, which sees none, not even itself; the walk leaves it out.
  std::vector<int32_t> parents;
  std::vector<Step> steps;
  int64_t slots = 0;  // states that are held at once

  // seen[count, count]: which tokens each one sees, its ancestors and itself.
  Order(const bool* seen, int64_t count) : parents(count, -1) {
    std::vector<int32_t> depths(count, 0);
    for (int64_t node = 0; node < count; node++) {
      const bool* row = seen + node * count;
      if (!row[node]) continue;
      if (node && follows(row, row - count, node, count)) {  // in a text each token does
        parents[node] = int32_t(node - 1), depths[node] = depths[node - 1] + 1;
        continue;
      }
      for (int64_t other = 0; other < count; other++) depths[node] += row[other];
    }
    for (int64_t node = 0; node < count; node++) {
      const bool* row = seen + node * count;
      if (parents[node] >= 0 || depths[node] < 2) continue;
      for (int64_t other = 0, most = 0; other < count; other++)
        if (other != node && row[other] && depths[other] > most)
          most = depths[other], parents[node] = int32_t(other);
    }
    walk(depths);
  }

 private:
  // Whether a token sees what the token before it sees, and itself.
  static bool follows(const bool* row, const bool* before, int64_t node, int64_t count) {
    return before[node - 1] && !memcmp(row, before, node) && row[node] && !before[node] &&
           !memcmp(row + node + 1, before + node + 1, count - node - 1);
  }

  // The largest subtree comes last and takes the place of its parent's state, so that as many states
  // are held as a count of nodes has bits, and one of a text.
  void walk(const std::vector<int32_t>& depths) {
    int64_t count = int64_t(parents.size());
    std::vector<int32_t> starts(count + 2, 0), by_depth(count), sizes(count, 1);
    for (int32_t depth : depths) starts[depth + 1]++;
    for (int64_t depth = 0; depth <= count; depth++) starts[depth + 1] += starts[depth];
    int64_t absent = starts[1];
    for (int64_t node = 0; node < count; node++) by_depth[starts[depths[node]]++] = int32_t(node);
    for (int64_t i = count; i-- > absent;)
      if (int32_t parent = parents[by_depth[i]]; parent >= 0) sizes[parent] += sizes[by_depth[i]];
    // Children as lists, that of the committed tokens last; the largest is the list's first.
    std::vector<int32_t> firsts(count + 1, -1), nexts(count, -1);
    for (int64_t i = count; i-- > absent;) {
      int32_t node = by_depth[i], parent = parents[node];
      int32_t& first = firsts[parent < 0 ? count : parent];
      if (first < 0 || sizes[node] >= sizes[first]) {
        nexts[node] = first, first = node;
      } else {
        nexts[node] = nexts[first], nexts[first] = node;
      }
    }
    std::vector<Step> open;
    auto put = [&](int64_t parent, int32_t from) {
      for (int32_t node = firsts[parent]; node >= 0; node = nexts[node])
        open.push_back({node, from, from < 0 || node != firsts[parent] ? from + 1 : from});
    };
    put(count, -1);
    while (!open.empty()) {
      Step step = open.back();
      open.pop_back();
      if (firsts[step.node] < 0) {
        step.to = -1;  // of a leaf no state is made
      } else {
        if (step.to >= slots) slots = step.to + 1;
        put(step.node, step.to);
      }
      steps.push_back(step);
    }
  }
};

}  // namespace jspec
