"""Which lines differ between two files, in bounded time.

Lines that occur once on both sides anchor the comparison (patience); between anchors the shortest edit is sought
(Myers, "An O(ND) difference algorithm"). Both draw on one budget of steps: where it is used up, a whole stretch is
given as replaced. That is coarse, but still exactly what turns one file into the other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

#: ``(start, end, start, end)``: lines of the first file that are replaced by lines of the second.
Block: TypeAlias = tuple[int, int, int, int]

BUDGET_STEPS = 2_000_000
_EDITS_MAX = 600


def blocks(first: Sequence[bytes], second: Sequence[bytes], budget: int = BUDGET_STEPS) -> list[Block]:
    """Return the replaced stretches in order, never adjacent to one another.

    Args:
        first: the lines of the first file.
        second: the lines of the second file.
        budget: how many steps may be spent on finding small stretches; about a microsecond each.
    """
    numbers: dict[bytes, int] = {}
    search = _Search(
        [numbers.setdefault(line, len(numbers)) for line in first],
        [numbers.setdefault(line, len(numbers)) for line in second],
        budget,
    )
    return _joined(search.run())


def _joined(found: list[Block]) -> list[Block]:
    result: list[Block] = []
    for block in sorted(found):
        if result and result[-1][1] == block[0] and result[-1][3] == block[2]:
            result[-1] = (result[-1][0], block[1], result[-1][2], block[3])
        else:
            result.append(block)
    return result


class _Search:
    """One comparison: lines as numbers, and the steps that are left."""

    def __init__(self, first: list[int], second: list[int], budget: int) -> None:
        self.first, self.second, self.budget = first, second, budget

    def run(self) -> list[Block]:
        found: list[Block] = []
        waiting: list[Block] = [(0, len(self.first), 0, len(self.second))]
        while waiting:
            block = self._trim(waiting.pop())
            start, end, other_start, other_end = block
            if start == end or other_start == other_end:
                if block[0] != block[1] or block[2] != block[3]:
                    found.append(block)
                continue
            anchors = self._anchors(block)
            if anchors:
                waiting.extend(_between(block, anchors))
            else:
                found.extend(self._shortest_edit(block))
        return found

    def _trim(self, block: Block) -> Block:
        """Return ``block`` without equal lines at its ends."""
        start, end, other_start, other_end = block
        first, second = self.first, self.second
        while start < end and other_start < other_end and first[start] == second[other_start]:
            start, other_start = start + 1, other_start + 1
        while start < end and other_start < other_end and first[end - 1] == second[other_end - 1]:
            end, other_end = end - 1, other_end - 1
        return start, end, other_start, other_end

    def _anchors(self, block: Block) -> list[tuple[int, int]]:
        """Return the longest rising run of lines that occur exactly once on each side."""
        start, end, other_start, other_end = block
        cost = end - start + other_end - other_start
        if cost > self.budget:
            return []
        self.budget -= cost
        counts, other_counts = Counter(self.first[start:end]), Counter(self.second[other_start:other_end])
        places = {
            self.second[place]: place
            for place in range(other_start, other_end)
            if other_counts[self.second[place]] == 1 and counts[self.second[place]] == 1
        }
        pairs = [(at, places[self.first[at]]) for at in range(start, end) if self.first[at] in places]
        return _longest_rising(pairs)

    def _shortest_edit(self, block: Block) -> list[Block]:
        """Return the smallest replaced stretches of ``block``, or ``block`` whole if they cost too much."""
        start, end, other_start, other_end = block
        length, other_length = end - start, other_end - other_start
        first, second = self.first[start:end], self.second[other_start:other_end]
        reach: dict[int, int] = {1: 0}
        trace: list[dict[int, int]] = []
        for edits in range(min(_EDITS_MAX, length + other_length) + 1):
            before = dict(reach)
            trace.append(before)
            for diagonal in range(-edits, edits + 1, 2):
                down = diagonal == -edits or (diagonal != edits and before[diagonal - 1] < before[diagonal + 1])
                at = start_at = before[diagonal + 1] if down else before[diagonal - 1] + 1
                other = at - diagonal
                while at < length and other < other_length and first[at] == second[other]:
                    at, other = at + 1, other + 1
                reach[diagonal] = at
                self.budget -= 1 + at - start_at
                if at >= length and other >= other_length:
                    return [
                        (start + one, start + one_end, other_start + two, other_start + two_end)
                        for one, one_end, two, two_end in _walked_back(trace, length, other_length)
                    ]
            if self.budget < 0:
                break
        return [block]


def _between(block: Block, anchors: list[tuple[int, int]]) -> list[Block]:
    start, end, other_start, other_end = block
    result = []
    for at, other in anchors:
        result.append((start, at, other_start, other))
        start, other_start = at + 1, other + 1
    result.append((start, end, other_start, other_end))
    return result


def _longest_rising(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest subsequence of ``pairs`` (rising in the first) that also rises in the second."""
    tails: list[int] = []
    last: list[int] = []
    previous: list[int] = []
    for index, (_, other) in enumerate(pairs):
        place = bisect_left(tails, other)
        previous.append(last[place - 1] if place else -1)
        if place == len(tails):
            tails.append(other)
            last.append(index)
        else:
            tails[place], last[place] = other, index
    result = []
    index = last[-1] if last else -1
    while index >= 0:
        result.append(pairs[index])
        index = previous[index]
    return result[::-1]


def _walked_back(trace: list[dict[int, int]], at: int, other: int) -> list[Block]:
    """Return the single insertions and deletions on the path that ``trace`` found, in no order."""
    result = []
    for edits in range(len(trace) - 1, 0, -1):
        reach = trace[edits]
        diagonal = at - other
        down = diagonal == -edits or (diagonal != edits and reach[diagonal - 1] < reach[diagonal + 1])
        at = reach[diagonal + 1 if down else diagonal - 1]
        other = at - (diagonal + 1 if down else diagonal - 1)
        result.append((at, at, other, other + 1) if down else (at, at + 1, other, other))
    return result
