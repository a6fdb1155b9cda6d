// The API's description for people, from openapi.json, without anything from elsewhere.
"use strict";

function make(name, text, ...children) {
  const element = document.createElement(name);
  if (text) element.textContent = text;
  element.append(...children);
  return element;
}

function resolve(schema, whole) {
  const name = schema && schema.$ref && schema.$ref.split("/").pop();
  return name ? whole.components.schemas[name] : schema || {};
}

function typeOf(schema, whole) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.enum) return schema.enum.join(" | ");
  if (schema.const) return schema.const;
  if (schema.anyOf) return schema.anyOf.map((one) => typeOf(one, whole)).join(" | ");
  if (schema.type === "array") return `list of ${typeOf(schema.items, whole)}`;
  return schema.type || "any";
}

function table(rows) {
  const body = make("tbody");
  for (const [name, schema, required, whole] of rows) {
    const given = "default" in schema && schema.default !== null ? `default ${schema.default}` : required ? "required" : "";
    body.append(make("tr", "", make("td", "", make("code", name)), make("td", typeOf(schema, whole)), make("td", given), make("td", schema.description || "")));
  }
  const head = make("thead", "", make("tr", "", ...["name", "type", "", "meaning"].map((text) => make("th", text))));
  return make("table", "", head, body);
}

function fields(schema, whole) {
  const found = resolve(schema, whole);
  return Object.entries(found.properties || {}).map(([name, one]) => [name, one, (found.required || []).includes(name), whole]);
}

function route(path, method, about, whole) {
  const part = make("section", "", make("h2", `${method.toUpperCase()} ${path}`), make("p", about.description || about.summary));
  if (about.parameters) part.append(table(about.parameters.map((one) => [one.name, { ...one.schema, description: one.description }, one.required, whole])));
  const body = about.requestBody && about.requestBody.content["application/json"].schema;
  if (body) {
    part.append(make("p", "Body:"), table(fields(body, whole)));
    const example = Object.fromEntries(fields(body, whole).filter(([, one]) => one.examples && !one.anyOf?.some((a) => a.type === "array")).map(([name, one]) => [name, one.examples[0]]));
    if (Object.keys(example).length) part.append(make("pre", `curl ${location.origin}${path} -H 'content-type: application/json' -d '${JSON.stringify(example)}'`));
  }
  const answer = about.responses["200"] && about.responses["200"].content && about.responses["200"].content["application/json"].schema;
  if (answer && answer.$ref) part.append(make("p", "Answer:"), table(fields(answer, whole)));
  const refusals = Object.entries(about.responses).filter(([code]) => code !== "200");
  if (refusals.length) part.append(make("p", "Refusals: " + refusals.map(([code, one]) => `${code} ${one.description}`).join(" ")));
  return part;
}

fetch("openapi.json")
  .then((response) => response.json())
  .then((whole) => {
    const parts = Object.entries(whole.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, about]) => route(path, method, about, whole)));
    document.getElementById("routes").replaceChildren(...parts);
  })
  .catch((error) => (document.getElementById("routes").textContent = String(error)));
