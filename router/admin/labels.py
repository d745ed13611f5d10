"""How many values a label may have: a bound that holds at insert, so that nobody can make series without end. Pure."""

from collections import Counter

OTHER = "other"
"""The value that stands for all values beyond the bound."""


class Labels:
    """The values of each label that have been admitted, first come. One value counts once, in however many metrics."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self._admitted: dict[str, set[str]] = {}
        self.overflow: Counter[str] = Counter()

    def value(self, label: str, value: str) -> str:
        """The value itself if there is room for it, else `OTHER`."""
        admitted = self._admitted.setdefault(label, set())
        if value in admitted:
            return value
        if len(admitted) >= self.bound:
            return OTHER
        admitted.add(value)
        return value

    def count(self, label: str, value: str) -> str:
        """The same for something that is counted now; one that found no room counts as overflow."""
        admitted = self.value(label, value)
        if admitted != value:
            self.overflow[label] += 1
        return admitted
