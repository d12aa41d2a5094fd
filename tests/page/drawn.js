(state) => {
  txcalc.state = state;
  const drawn = [...document.querySelectorAll("#view data")].map((d) => [d.dataset.figure ?? d.dataset.real, d.value]);
  const told = txcalc.elements(state).filter(({ type }) => type === "data");
  return [drawn, told.map(({ props }) => [props["data-figure"] ?? props["data-real"], props.value])];
}
