// The page's libraries. README.md here says how the bundle is built.
import * as echarts from "echarts/core";
import { BarChart, LineChart, ScatterChart, TreemapChart } from "echarts/charts";
import { AriaComponent, GridComponent, LegendComponent, MarkLineComponent, TooltipComponent } from "echarts/components";
import { SVGRenderer } from "echarts/renderers";
import { h, render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import htm from "htm";

echarts.use([BarChart, LineChart, ScatterChart, TreemapChart]);
echarts.use([AriaComponent, GridComponent, LegendComponent, MarkLineComponent, TooltipComponent, SVGRenderer]);
export const html = htm.bind(h);
export { echarts, render, useEffect, useRef, useState };
