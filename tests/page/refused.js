(index) => {
  const model = txcalc.models[index], refused = [];
  txcalc.state = { model: index };
  const values = txcalc.evaluate(model, {}, false).letters;
  for (const slider of model.sliders) {
    const stops = txcalc.stops(slider, values[slider.letter]);
    for (const from of new Set([0, stops.indexOf(Number(values[slider.letter]))]))
      for (let to = 0; to < stops.length; to++) {
        const value = txcalc.snap(model, slider, stops, from, to);
        const found = txcalc.evaluate(model, { [slider.letter]: value }, false);
        if (found.refused) refused.push([slider.letter, stops[to], value]);
      }
  }
  return refused;
}
