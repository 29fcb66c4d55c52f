"""Bars in groups, as an SVG that any browser and any forge shows."""

from xml.sax.saxutils import escape

BAR, GAP, LABELS, WIDTH = 15, 16, 190, 760
COLOURS = ["#1f5f8b", "#c0504d", "#7f9f3f", "#8064a2", "#d08a2e", "#4bacc6"]


def bars(title, groups, names, value, label):
    """A bar for each of `names` in each of `groups`: `value(group, name)` is its length or None, `label(group, name)` its text."""
    longest = max((value(group, name) or 0 for group in groups for name in names), default=0) or 1
    height = 50 + len(groups) * (len(names) * BAR + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="20" font-size="14">{escape(title)}</text>',
    ]
    y = 40
    for group in groups:
        middle = y + len(names) * BAR / 2 + 4
        parts.append(f'<text x="{LABELS - 10}" y="{middle:.0f}" text-anchor="end">{escape(group)}</text>')
        for name, colour in zip(names, COLOURS):
            length = (value(group, name) or 0) / longest * (WIDTH - LABELS - 220)
            parts.append(f'<rect x="{LABELS}" y="{y}" width="{length:.1f}" height="{BAR - 2}" fill="{colour}"/>')
            parts.append(f'<text x="{LABELS + length + 5:.1f}" y="{y + BAR - 5}">{escape(label(group, name))}</text>')
            y += BAR
        y += GAP
    return "\n".join([*parts, "</svg>\n"])
