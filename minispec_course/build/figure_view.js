// A plotly figure on the builder's page, for the picture that stands beside it in a stored notebook.

const CONFIG = {displayModeBar: false, displaylogo: false, showTips: false, responsive: false, doubleClick: false};
const INK = "#4a535d";  // a figure is drawn for no page in particular; on a white one its greys become readable (4.5:1)

function inked(node, greys) {
  if (typeof node === "string") return greys.includes(node.toLowerCase()) ? INK : node;
  if (Array.isArray(node)) return node.map(part => inked(part, greys));
  if (node === null || typeof node !== "object" || ArrayBuffer.isView(node)) return node;
  return Object.fromEntries(Object.entries(node).map(([key, part]) => [key, inked(part, greys)]));
}

// Labels of ticks may reach beyond the picture: margins give them room.
function roomy(layout) {
  const ofAll = layout.template?.layout ?? {}, loose = {ticklabeloverflow: "allow"};
  const template = {...layout.template, layout: {...ofAll, xaxis: {...ofAll.xaxis, ...loose}, yaxis: {...ofAll.yaxis, ...loose}}};
  return {...layout, template};
}

export default async function draw(box, figure, greys) {
  const { data, layout } = inked(figure, greys);
  const height = layout.height ?? 400;
  box.style.minHeight = `${height}px`;
  await globalThis.minispecPlotly.react(box, data, {...roomy(layout), width: box.clientWidth, height, autosize: false}, CONFIG);
}
