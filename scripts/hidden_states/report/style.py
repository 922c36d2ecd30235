"""How the page looks; inside the page, so that it is one file."""

STYLE = """\
:root {
  color-scheme: light;
  --ink: #1b2330; --soft: #5c6675; --line: #dfe4ea; --paper: #ffffff; --wash: #f5f7f9; --bar: #2f6f9f; --warn: #a3450c;
  --pale: #b9d2e4; --loss: #d8ecd3; --loss-ink: #1d4d17;
}
* { box-sizing: border-box; }
body {
  margin: 0; padding: 28px 20px 48px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
}
main { max-width: 920px; margin: 0 auto; }
h1 { font-size: 24px; line-height: 1.25; margin: 0 0 4px; }
h2 { font-size: 17px; margin: 36px 0 10px; }
h3 { font-size: 13px; font-weight: 600; color: var(--soft); margin: 16px 0 0; }
p { margin: 6px 0; max-width: 72ch; }
.soft { color: var(--soft); }
code { font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere; }
pre { margin: 8px 0; padding: 12px 14px; background: var(--wash); border: 1px solid var(--line); border-radius: 6px; }
pre code { white-space: pre-wrap; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); gap: 10px; margin: 20px 0 0; }
.tile { padding: 12px 14px; background: var(--wash); border: 1px solid var(--line); border-radius: 6px; }
.tile b { display: block; font-size: 22px; line-height: 1.2; font-weight: 600; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; }
.tile.warn b { color: var(--warn); }
.narrow { max-width: 520px; }
.in1 { padding-left: 18px; }
.in2 { padding-left: 36px; color: var(--soft); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 12px 5px 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
th { font-weight: 600; font-size: 13px; color: var(--soft); }
td table tr:last-child td { border-bottom: 0; }
td.n, th.n { text-align: right; white-space: nowrap; }
figure { margin: 8px 0 0; }
svg { display: block; width: 100%; height: auto; }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft); }
svg text.x, svg text.title { text-anchor: middle; }
svg text.y { text-anchor: end; }
svg line.grid { stroke: var(--line); }
svg line.axis { stroke: var(--soft); }
svg rect { fill: var(--bar); }
svg rect.range { fill: var(--pale); }
svg rect:hover, svg g:hover rect { fill: var(--ink); }
svg g:hover rect.range { fill: var(--bar); }
.meter { display: inline-block; width: 96px; height: 9px; margin-right: 10px; background: var(--wash); }
.whole { white-space: nowrap; }
.meter span { display: block; height: 100%; background: var(--bar); }
p.example { margin: 4px 0 0; font-size: 13px; color: var(--soft); overflow-wrap: anywhere; }
p.warn { color: var(--warn); }
details { margin: 12px 0; }
summary { cursor: pointer; font-size: 13px; color: var(--soft); overflow-wrap: anywhere; }
.talk {
  margin: 6px 0 0; padding: 12px 14px; max-height: 420px; overflow: auto;
  border: 1px solid var(--line); border-radius: 6px;
  font: 13px/1.6 ui-monospace, "SF Mono", Menlo, Consolas, monospace; white-space: pre-wrap; overflow-wrap: anywhere;
}
mark { background: var(--loss); color: var(--loss-ink); }
.talk i { color: var(--soft); font-style: normal; opacity: 0.6; }
.gap { display: block; margin: 8px 0; text-align: center; color: var(--soft); }
"""
