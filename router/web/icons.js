// The few drawings of the page, made as SVG elements. States differ by shape as well as by colour.

import { svg } from "./dom.js";

function icon(className, ...shapes) {
  return svg("svg", { viewBox: "0 0 16 16", class: `icon ${className}`, "aria-hidden": "true" }, ...shapes);
}

const stroke = (d) => svg("path", { d, class: "icon-stroke" });
const solid = (d) => svg("path", { d, class: "icon-fill" });

const shapes = {
  unloaded: () => [svg("circle", { cx: 8, cy: 8, r: 4.5, class: "icon-stroke" })],
  ready: () => [svg("circle", { cx: 8, cy: 8, r: 5.25, class: "icon-fill" })],
  working: () => [
    svg("circle", { cx: 8, cy: 8, r: 5, class: "icon-stroke icon-faint" }),
    svg("path", { d: "M8 3a5 5 0 0 1 5 5", class: "icon-stroke icon-spin" }),
  ],
  downloading: () => [stroke("M8 2.5v7.5M4.75 7 8 10.25 11.25 7M3.5 13.25h9")],
  leaving: () => [stroke("M8 13.5V6M4.75 9 8 5.75 11.25 9M3.5 2.75h9")],
  backoff: () => [solid("M4 3.5h3v9H4zM9 3.5h3v9H9z")],
  failed: () => [stroke("M4 4l8 8M12 4l-8 8")],
  unavailable: () => [svg("circle", { cx: 8, cy: 8, r: 5, class: "icon-stroke" }), stroke("M4.6 11.4 11.4 4.6")],
  remote: () => [stroke("M6 3.5H3.5v9h9V10M9 3.5h3.5V7M12.25 3.75 7.5 8.5")],
};

const shapeOf = {
  unloaded: "unloaded",
  starting: "working",
  loading: "working",
  downloading: "downloading",
  ready: "ready",
  draining: "leaving",
  stopping: "leaving",
  backoff: "backoff",
  failed: "failed",
  unavailable: "unavailable",
  remote: "remote",
};

/** The drawing for a model's state. */
export function stateIcon(state) {
  return icon("state-icon", ...shapes[shapeOf[state] ?? "unloaded"]());
}

export const pinIcon = () => icon("", stroke("M5.5 2.5h5M6.5 2.5v4L4.5 9h7l-2-2.5v-4M8 9v4.5"));
export const chevronIcon = () => icon("chevron", stroke("M6 3.5 10.5 8 6 12.5"));
export const closeIcon = () => icon("", stroke("M4 4l8 8M12 4l-8 8"));
export const copyIcon = () => icon("", stroke("M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3"));
export const keyIcon = () => icon("", svg("circle", { cx: 5, cy: 11, r: 2.75, class: "icon-stroke" }), stroke("M7 9l6-6M10.5 5.5 12.5 7.5"));
export const warnIcon = () => icon("", stroke("M8 2.25 14.25 13.5H1.75zM8 6.5v3.25M8 11.25v.5"));
export const themeIcons = {
  auto: () => icon("", svg("circle", { cx: 8, cy: 8, r: 5.5, class: "icon-stroke" }), solid("M8 2.5a5.5 5.5 0 0 1 0 11z")),
  light: () => icon("", svg("circle", { cx: 8, cy: 8, r: 2.75, class: "icon-stroke" }),
    stroke("M8 1.5v1.25M8 13.25v1.25M1.5 8h1.25M13.25 8h1.25M3.4 3.4l.9.9M11.7 11.7l.9.9M12.6 3.4l-.9.9M4.3 11.7l-.9.9")),
  dark: () => icon("", stroke("M13 9.75A5.5 5.5 0 1 1 6.25 3a4.5 4.5 0 0 0 6.75 6.75z")),
};
