"""The style sheet of the HTML report: one column, system fonts, light and dark, laptop and phone."""

STYLE = """
:root{color-scheme:light dark;--bg:#fcfcfb;--card:#fff;--ink:#1c1b19;--soft:#5f5d57;--faint:#8a877f;
--line:#e4e2dc;--hair:#efede8;--good:#0b7a3b;--bad:#b3261e;--accent:#2a63c4;--mark:#eef3fc;
--c0:#2a78d6;--c1:#d95926;--c2:#15936a;--c3:#8a4fc9;--c4:#b37a00;--c5:#c43d78}
@media (prefers-color-scheme:dark){:root{--bg:#161615;--card:#1e1e1c;--ink:#eceae5;--soft:#aaa79f;
--faint:#7f7c75;--line:#34332f;--hair:#2a2926;--good:#5fc98a;--bad:#f08a80;--accent:#86b1f7;--mark:#1f2a3d;
--c0:#5b9cf0;--c1:#f0834f;--c2:#3fbf93;--c3:#b58af0;--c4:#d8a63a;--c5:#ec7aa8}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:960px;margin:0 auto;padding:48px 24px 72px}
h1{font-size:30px;line-height:1.2;margin:0 0 10px;letter-spacing:-.015em;font-weight:650}
h2{font-size:20px;line-height:1.3;margin:48px 0 4px;font-weight:650;letter-spacing:-.005em}
h3{font-size:16px;margin:0 0 8px;font-weight:600}
p{margin:0 0 12px;max-width:70ch}
.lead{font-size:17px;color:var(--soft)}
.meta,.legend{color:var(--soft);font-size:14px}
.legend{margin-top:14px}
ul.notes{margin:12px 0 0;padding-left:1.2em;color:var(--soft);font-size:14px}
.scroll{overflow-x:auto;margin-top:12px;border:1px solid var(--line);border-radius:10px;
background:var(--card)}
table{border-collapse:separate;border-spacing:0;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:10px 14px;text-align:right;vertical-align:top;border-top:1px solid var(--hair);
white-space:nowrap}
thead th{border-top:0;border-bottom:1px solid var(--line);font-size:13px;font-weight:600;color:var(--soft)}
th:first-child,td:first-child{text-align:left}
tbody th{font-weight:500;line-height:1.35;
white-space:normal;min-width:9em;max-width:18em;overflow-wrap:anywhere}
tbody tr:first-child th,tbody tr:first-child td{border-top:0}
.wide{width:max-content;min-width:100%;max-width:calc(100vw - 48px);position:relative;left:50%;
transform:translateX(-50%)}
.wide thead th{white-space:normal;max-width:8em}
.claims tbody th{min-width:14em;max-width:22em}
.claims th,.claims td{text-align:left;white-space:normal}
.claims td:nth-child(2){white-space:nowrap}
.claims th:nth-last-child(-n+2),.claims td:nth-last-child(-n+2){text-align:right;white-space:nowrap}
td .v{font-size:16px}
td.best .v{font-weight:700}
td .ci{display:block;font-size:12px;color:var(--faint);line-height:1.35}
td .d{display:block;font-size:12px;color:var(--soft);line-height:1.35}
td .up{color:var(--good)}td .down{color:var(--bad)}
.tag{display:inline-block;margin-left:.5em;padding:0 .5em;border-radius:9px;background:var(--mark);
color:var(--accent);font-size:12px;font-weight:500;white-space:nowrap}
.dots{margin:18px 0 0}
.dots .row{display:grid;grid-template-columns:minmax(6.5em,11em) 1fr 3em;gap:14px;align-items:center;
padding:5px 0;font-size:14px}
.dots .name{overflow-wrap:anywhere;line-height:1.25}
.dots .track{position:relative;height:18px}
.dots .track::before{content:"";position:absolute;left:0;right:0;top:8.5px;height:1px;background:var(--line)}
.dots .range{position:absolute;top:7px;height:4px;border-radius:2px;background:var(--c0);opacity:.35}
.dots .dot{position:absolute;top:4px;width:10px;height:10px;margin-left:-5px;border-radius:50%;
background:var(--c0)}
.dots .base .range,.dots .base .dot{background:var(--faint)}
.dots .num{text-align:right;font-variant-numeric:tabular-nums}
.dots .axis{color:var(--faint);font-size:12px;display:flex;justify-content:space-between}
figure{margin:16px 0 0;padding:18px 18px 14px;border:1px solid var(--line);border-radius:10px;
background:var(--card)}
figcaption{font-size:14px;font-weight:600;margin-bottom:10px}
.plot{position:relative;height:220px;margin:0 6px 26px 52px}
.plot svg{position:absolute;inset:0;width:100%;height:100%;overflow:visible}
.plot path{fill:none;stroke-width:2;
stroke-linejoin:round;stroke-linecap:round;vector-effect:non-scaling-stroke}
.plot line{stroke:var(--hair);stroke-width:1;vector-effect:non-scaling-stroke}
.plot .x,.plot .y{position:absolute;font-size:12px;color:var(--faint);line-height:1;
font-variant-numeric:tabular-nums}
.plot .y{right:100%;margin-right:8px;transform:translateY(-50%)}
.plot .x{top:100%;margin-top:8px;transform:translateX(-50%);white-space:nowrap}
.plot .x.last{transform:translateX(-100%)}
.keys{display:flex;flex-wrap:wrap;gap:4px 18px;font-size:13px;color:var(--soft)}
.keys i{display:inline-block;width:14px;height:3px;border-radius:2px;margin-right:6px;vertical-align:middle}
.example{margin-top:14px;padding:16px 18px;border:1px solid var(--line);border-radius:10px;
background:var(--card)}
.example .q{font-size:17px;font-weight:600;line-height:1.4;margin:0 0 4px;overflow-wrap:anywhere}
.example .rel{font-size:14px;color:var(--soft);margin:0 0 10px;overflow-wrap:anywhere}
.sides{display:grid;grid-template-columns:repeat(auto-fit,minmax(240px,1fr));gap:16px 24px}
.side h3{font-size:14px;
display:flex;justify-content:space-between;gap:12px;border-bottom:1px solid var(--hair);
padding-bottom:6px}
.side h3 span{font-weight:400;color:var(--soft);white-space:nowrap}
.side ol{margin:0;padding-left:1.5em;font-size:14px;line-height:1.45}
.side li{margin:0 0 6px;overflow-wrap:anywhere}
.side li::marker{color:var(--faint)}
.side li.hit{color:var(--good);font-weight:500}
.side li small{color:var(--faint);font-variant-numeric:tabular-nums;font-weight:400;font-size:12px}
dl{display:grid;grid-template-columns:minmax(9em,auto) 1fr;gap:0 18px;margin:12px 0 0;font-size:14px}
dt{color:var(--soft);padding:5px 0;border-top:1px solid var(--hair);overflow-wrap:anywhere}
dd{margin:0;padding:5px 0;border-top:1px solid var(--hair);overflow-wrap:anywhere;
font-variant-numeric:tabular-nums}
ul.movers{list-style:none;margin:8px 0 18px;padding:0;border:1px solid var(--line);border-radius:10px;
background:var(--card)}
.movers li{display:grid;grid-template-columns:1fr auto;gap:0 18px;padding:10px 16px;
border-top:1px solid var(--hair)}
.movers li:first-child{border-top:0}
.movers p{margin:0;overflow-wrap:anywhere}
.movers .q{font-size:15px;font-weight:500;line-height:1.4}
.movers .rel{font-size:13px;color:var(--soft);grid-column:1}
.movers .move{grid-column:2;grid-row:1/span 2;align-self:center;white-space:nowrap;font-size:14px;
font-variant-numeric:tabular-nums}
.up{color:var(--good)}.down{color:var(--bad)}
figure.map svg{width:100%;height:auto;display:block}
details{margin-top:22px}
summary{cursor:pointer;font-weight:600}
summary:focus-visible{outline:2px solid var(--accent);outline-offset:3px;border-radius:3px}
@media (max-width:560px){body{font-size:15px}main{padding:28px 16px 48px}h1{font-size:24px}
h2{margin-top:38px;font-size:18px}th,td{padding:8px 10px}
thead th:first-child,tbody th{position:sticky;left:0;background:var(--card);min-width:7.5em;max-width:8.5em;
box-shadow:1px 0 0 var(--hair)}
.tag{display:table;margin:2px 0 0}.dots .row{grid-template-columns:7em 1fr 2.6em;gap:10px}
figure{padding:14px 12px 12px}.plot{height:180px;margin-left:44px}dl{grid-template-columns:1fr}
.movers li{grid-template-columns:1fr}.movers .move{grid-column:1;grid-row:auto;margin-top:3px}
dd{border-top:0;padding-top:0}dt{padding-bottom:0}.sides{grid-template-columns:1fr}}
@media print{body{background:#fff}main{padding:0;max-width:none}.scroll,figure,.example{break-inside:avoid}}
"""
