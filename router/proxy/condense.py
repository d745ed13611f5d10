"""A big JSON body made small for reading, in slices, so that no other request stands still meanwhile.

Decoding 16 MiB takes msgspec 15 to 180 ms, in which it holds the interpreter's lock, so a thread would be no help. But
what makes a body big is long strings, so those are taken out before anything is decoded: the body is walked from quote
to quote, at the speed of `bytes.find`, and

- text is kept until there are TEXT bytes of it, and of what comes then only a hash;
- of any other long string (an image in base64) a hash stands for it, as it does in core/prompt;
- everything else stays, up to STRUCTURE bytes; a body that has more is not read.

So a prompt keeps its chain when its body grows beyond BIG, and blocks behind the text that was left out still commit to
it. Nothing here validates: what is no JSON stays none.
"""

import re
from collections.abc import Iterator

from router.core.prompt import LONG, digest
from router.proxy.wire import Body

BIG = 1 << 20
"""Bytes of a body up to which it is decoded as it is, in 1 to 5 ms."""

TEXT = 1 << 20
"""Bytes of text that are read: some 250,000 tokens, two thousand blocks; they take as long as a body that is not big.
Text behind it counts in the prompt's size and in what hashes commit to, but is never found to be cached."""

STRUCTURE = 1 << 20
"""Bytes of all else: sixteen thousand messages."""

SHORT = 64
"""Bytes of a string that a hash would hardly make shorter; they are not counted as text either."""

QUOTES = 2000
"""Quotes that a slice looks at: half a millisecond."""

TEXTS = frozenset(
    b"content text prompt input instructions system query text_1 arguments output description".split()
)  # fmt: skip
"""Names of what core/prompt reads as text. What has no name stands in a list, and counts as text, too."""

_BACKSLASH = 0x5C
_NAMED_WITHIN = 16  # White space and a colon between a name and its value.
_ROW = 256  # Backslashes that are looked at together.
_ESCAPE = 12  # Bytes of the longest escape: two halves of one character.
_FIRST_HALF = re.compile(rb"\\u[dD][89abAB]..", re.DOTALL)


class Condenser:
    """One body, a JSON object. When all `slices` are done, `body` is the small one, which lacks `omitted` bytes of
    text."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._at = 0  # Where the next quote is looked for.
        self._begin = -1  # Where the string begins in which that is, if it is in one.
        self._name, self._name_end = 0, 0  # The string before.
        self._pieces: list[Body] = []
        self._taken = 0  # Up to here the pieces have it.
        self._dropped = 0
        self._text = TEXT
        self.omitted = 0

    def slices(self) -> Iterator[None]:
        """Do the work; whatever else there is to do can be done between two of them."""
        going = True
        while going:
            going = self._go_on()
            yield

    def _go_on(self) -> bool:
        """One slice; False when there is no other, because all is done or too much is left."""
        body, at, begin = self._body, self._at, self._begin
        for _ in range(QUOTES):
            quote = body.find(b'"', at)
            if quote < 0:
                return False
            at = quote + 1
            if begin < 0:
                begin = at
            elif body[quote - 1] != _BACKSLASH or self._slashes(begin, quote) % 2 == 0:
                if quote - begin > SHORT:
                    self._long(begin, quote)
                self._name, self._name_end = begin, quote
                begin = -1
        self._at, self._begin = at, begin
        return self._fits(at if begin < 0 else begin)

    @property
    def body(self) -> bytes | None:
        """What is left of the body; None when that is too much."""
        if not self._fits(len(self._body)):
            return None
        return b"".join([*self._pieces, self._body[self._taken :]])

    def _fits(self, end: int) -> bool:
        return end - self._dropped <= TEXT + STRUCTURE

    def _slashes(self, begin: int, end: int) -> int:
        """How many backslashes stand in a row before `end`."""
        at = end
        while at > begin:
            before = self._body[max(begin, at - _ROW) : at]
            others = len(before.rstrip(b"\\"))
            at -= len(before) - others
            if others:
                break
        return end - at

    def _long(self, begin: int, end: int) -> None:
        """Take a string out, or what of it goes too far."""
        cut = begin
        if self._is_text(begin):
            kept = min(self._text, end - begin)
            self._text -= kept
            if kept == end - begin:
                return
            cut = self._whole(begin, begin + kept)
            self.omitted += end - cut
        elif end - begin <= LONG:
            return
        hashed = digest(memoryview(self._body)[cut:end]).encode()
        self._pieces += self._body[self._taken : cut], hashed
        self._dropped += end - cut - len(hashed)
        self._taken = end

    def _is_text(self, begin: int) -> bool:
        between = self._body[max(self._name_end + 1, begin - _NAMED_WITHIN) : begin - 1]
        return between.strip() != b":" or bytes(self._body[self._name : self._name_end]) in TEXTS

    def _whole(self, begin: int, end: int) -> int:
        """The last place up to `end` at which neither a character nor an escape is cut in two."""
        body = self._body
        while end > begin and body[end] & 0xC0 == 0x80:  # It goes on with a byte that begins no character.
            end -= 1
        slash = body.rfind(b"\\", max(begin, end - _ESCAPE), end)
        if slash < 0 or self._slashes(begin, slash) % 2:  # None, or one that ends an escape.
            return end
        return slash - 6 if _FIRST_HALF.fullmatch(body, max(begin, slash - 6), slash) else slash
