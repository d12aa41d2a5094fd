(all) => JSON.stringify(all.map((state) => {
  const text = (node) => Array.isArray(node) ? node.map(text).join("")
    : typeof node === "object" && node ? text(typeof node.type === "function" ? node.type(node.props)
    : node.props.children) : typeof node === "boolean" ? "" : String(node ?? "");
  const found = { figures: [], real: [], badges: [], worked: [], refused: false, command: "", said: "" };
  let names = [], badge = "";
  for (const { type, props } of txcalc.elements(state)) {
    if (type === "tr" || props.class === "card") [names, badge] = [[], ""];
    if (type === "data") {
      const real = "data-real" in props, name = props[real ? "data-real" : "data-figure"];
      found[real ? "real" : "figures"].push([name, props.value, text(props.children)]);
      names.push(name);
    }
    if (/^badge/.test(props.class)) badge = text(props.children);
    if (badge) found.badges.push(...names.splice(0).map((name) => [name, badge]));
    if (props.class === "worked") found.worked.push(text(props.children));
    if (props.class === "command") found.command = text(props.children);
    if (props.class === "summary") found.said = text(props.children);
    if (props["data-proved"] !== undefined) found.proved = props["data-proved"] === "1";
    found.refused ||= "data-refused" in props;
  }
  return found;
}))
