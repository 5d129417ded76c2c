// A form in a dialog. Invariants: only changed fields are sent; an error marks the field that it names.

import { el, failure, overlay } from "./dom.js";

function control(name, field, value) {
  const shared = { name, id: `field-${name}`, "aria-describedby": `about-${name}` };
  if (!field.options) {
    return el("input", { ...shared, type: field.type ?? "text", min: field.min, step: field.step, required: field.required, maxlength: field.type ? null : 2000, autocomplete: "off", value });
  }
  const known = value in field.options ? field.options : { ...field.options, [value]: value };
  return el("select", shared, Object.entries(known).map(([one, words]) => el("option", { value: one, selected: one === value }, words)));
}

const line = (name, field, value) => el("div", { class: "field-line" },
  el("label", { for: `field-${name}` }, field.label), control(name, field, value),
  el("div", { class: "quiet small", id: `about-${name}` }, field.hint ?? ""));

/** Shows an error and marks its field. */
function refused(form, error, trouble) {
  form.querySelectorAll("[aria-invalid]").forEach((one) => one.removeAttribute("aria-invalid"));
  const field = error.param && form.elements[error.param];
  trouble.replaceChildren(failure(error));
  if (!field) return;
  field.setAttribute("aria-invalid", "true");
  field.focus();
}

/**
 * Opens a form. `fields`: name → {label, hint, options or type, from: object → text, to: text → value to send,
 * with: another field; this one is sent when that one changes}. `fresh`: a new object; every non-empty field is sent.
 * `send` gets the body, `done` the answer.
 * @param {{title: string, words?: any, fields: Record<string, any>, one?: any, fresh?: boolean, label: string,
 *   send: (body: object) => Promise<any>, done: (answer: any) => void}} options
 */
export function openForm({ title, words, fields, one, fresh, label, send, done }) {
  const lines = Object.entries(fields);
  const first = Object.fromEntries(lines.map(([name, field]) => [name, String(field.from(one))]));
  const trouble = el("div", {});
  const button = el("button", { class: "main" }, label);
  const submit = async (event) => {
    event.preventDefault();
    const given = new FormData(form);
    const differs = (name) => given.get(name) !== first[name] || lines.some(([other, field]) => field.with === name && given.get(other) !== first[other]);
    const changed = lines.filter(([name]) => (fresh ? given.get(name) !== "" : differs(name)));
    button.disabled = true;
    try {
      const answer = await send(Object.fromEntries(changed.map(([name, field]) => [name, field.to(given.get(name))])));
      box.close();
      done(answer);
    } catch (error) {
      refused(form, error, trouble);
      button.disabled = false;
    }
  };
  const form = el("form", { submit }, words && el("p", {}, words),
    el("div", { class: "fields" }, lines.map(([name, field]) => line(name, field, first[name]))),
    trouble, el("div", { class: "row end" }, el("button", { type: "button", click: () => box.close() }, "Cancel"), button));
  const box = overlay(title, form);
  form.elements[0].focus();
}
