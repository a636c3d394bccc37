"use strict";
(async () => {
  const specs = JSON.parse(document.getElementById("figure-data").textContent);
  const note = document.getElementById("figure-note");
  const packed = document.getElementById("plotly-bundle");
  const run = (fill) => new Promise((resolve, reject) => {
    const script = document.createElement("script");
    fill(script);
    script.onload = resolve;
    script.onerror = reject;
    document.head.append(script);
    if (!script.src) resolve();
  });
  document.documentElement.dataset.figures = "drawing";
  try {
    if (packed) {
      const raw = Uint8Array.from(atob(packed.textContent.trim()), (c) => c.charCodeAt(0));
      const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("gzip"));
      const code = await new Response(stream).text();
      await run((script) => { script.textContent = code; });
      packed.remove();
    } else {
      const from = document.getElementById("figure-data").dataset;
      await run((script) => {
        script.crossOrigin = "anonymous";
        script.integrity = from.integrity;
        script.src = from.src;
      });
    }
    for (const spec of specs) {
      await Plotly.newPlot(spec.id, spec.data, spec.layout, { displayModeBar: false, responsive: true });
    }
    document.documentElement.dataset.figures = "drawn";
  } catch (error) {
    note.hidden = false;
    document.documentElement.dataset.figures = "failed";
  }
  addEventListener("beforeprint", () => {
    for (const box of document.querySelectorAll("details")) box.open = true;
  });
})();
