// The last minute of a model's speed as a small line. Owns the samples.

import { setAttr, svg } from "../dom.js";

const SAMPLES = 60;
const WIDTH = 90;
const HEIGHT = 22;

/** Return `{node, push(value)}`: one value a second, null = unknown. */
export function createSparkline() {
  const values = [];
  const area = svg("path", { class: "spark-area" });
  const line = svg("path", { class: "spark-line" });
  const node = svg("svg", {
    class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, preserveAspectRatio: "none", "aria-hidden": "true",
  }, area, line);

  function push(value) {
    values.push(value);
    if (values.length > SAMPLES) values.shift();
    draw();
  }

  /** True once nothing but zeros and gaps is left, so that no more samples are needed. */
  function isQuiet() {
    return !values.some((value) => value > 0);
  }

  function draw() {
    const most = Math.max(1, ...values.map((value) => value ?? 0));
    const step = WIDTH / (SAMPLES - 1);
    let path = "";
    let fill = "";
    let isDown = false;
    let last = 0;
    values.forEach((value, at) => {
      if (value === null) {
        if (isDown) fill += `L${last} ${HEIGHT}Z`;
        isDown = false;
        return;
      }
      const x = (WIDTH - (values.length - 1 - at) * step).toFixed(1);
      const y = (HEIGHT - 1.5 - (value / most) * (HEIGHT - 3)).toFixed(1);
      fill += isDown ? `L${x} ${y}` : `M${x} ${HEIGHT}L${x} ${y}`;
      path += `${isDown ? "L" : "M"}${x} ${y}`;
      isDown = true;
      last = x;
    });
    if (isDown) fill += `L${last} ${HEIGHT}Z`;
    setAttr(line, "d", path || null);
    setAttr(area, "d", fill || null);
  }
  return { node, push, isQuiet };
}
