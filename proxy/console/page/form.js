// A form in a dialog. Invariants: only changed fields are sent; an error marks the field that it names.

import { closeDialog, Dialog, Failure, html, openDialog, Suggest, useLayoutEffect, useRef, useState } from "./ui.js";

function Control({ name, field, value, wrong }) {
  const shared = { name, id: `field-${name}`, "aria-describedby": `about-${name}`, "aria-invalid": wrong ? "true" : null };
  if (field.find) return html`<${Suggest} ...${shared} find=${field.find} required=${field.required} defaultValue=${value} />`;
  if (!field.options) return html`<input ...${shared} type=${field.type ?? "text"} min=${field.min} step=${field.step} required=${field.required}
    maxlength=${field.type ? null : 2000} autocomplete="off" defaultValue=${value} />`;
  if (field.many) return html`<select ...${shared} multiple size="5" required=${field.required}>${Object.entries(field.options).map(([one, words]) => html`<option
    key=${one} value=${one} selected=${value.split("\n").includes(one)}>${words}</option>`)}</select>`;
  const known = value in field.options ? field.options : { ...field.options, [value]: value };
  return html`<select ...${shared}>${Object.entries(known).map(([one, words]) => html`<option key=${one} value=${one} selected=${one === value}>${words}
    </option>`)}</select>`;
}

const Line = ({ name, field, value, wrong }) => html`<div class="field-line"><label for=${`field-${name}`}>${field.label}</label>
  <${Control} name=${name} field=${field} value=${value} wrong=${wrong} />
  <div class="quiet small" id=${`about-${name}`}>${field.hint ?? ""}</div></div>`;

/**
 * `fields`: name → {label, hint, options (many: several can be chosen, a text with a line for each), find (see `Suggest`) or type, from: object → text,
 * to: text → value to send, with: another field (this one is sent when that one changes), more: shown under “More”}. `fresh`: a new object; every non-empty field is sent. `send` gets the body; `done` gets
 * the answer and may return the next dialog.
 * @param {{title: string, words?: any, fields: Record<string, any>, one?: any, fresh?: boolean, label: string,
 *   send: (body: object) => Promise<any>, done: (answer: any) => any}} options
 */
export function Form({ title, words, fields, one, fresh, label, send, done }) {
  const lines = Object.entries(fields);
  const first = useRef(Object.fromEntries(lines.map(([name, field]) => [name, String(field.from(one))]))).current;
  const [state, set] = useState({ busy: false, error: null });
  const form = useRef(null);
  useLayoutEffect(() => {
    const field = state.error?.param && form.current.elements[state.error.param];
    if (!field) return;
    field.closest("details")?.setAttribute("open", "");
    field.focus();
  }, [state.error]);
  const submit = async (event) => {
    event.preventDefault();
    const given = new FormData(form.current);
    lines.filter(([, field]) => field.many).forEach(([name]) => given.set(name, given.getAll(name).join("\n")));
    const differs = (name) => given.get(name) !== first[name] || lines.some(([other, field]) => field.with === name && given.get(other) !== first[other]);
    const changed = lines.filter(([name]) => (fresh ? given.get(name) !== "" : differs(name)));
    set({ busy: true, error: null });
    try {
      const answer = await send(Object.fromEntries(changed.map(([name, field]) => [name, field.to(given.get(name))])));
      const next = done(answer);
      if (next?.type) openDialog(next); else closeDialog();
    } catch (error) {
      set({ busy: false, error });
    }
  };
  const draw = (shown) => html`<div class="fields">${shown.map(([name,
    field]) => html`<${Line} key=${name} name=${name} field=${field} value=${first[name]} wrong=${state.error?.param === name} />`)}</div>`;
  const more = lines.filter(([, field]) => field.more);
  const error = state.error && { message: fields[state.error.param] ? `${fields[state.error.param].label}: ${state.error.message}` : state.error.message };
  return html`<${Dialog} title=${title}><form ref=${form} onSubmit=${submit}>${words && html`<div class="words">${words}</div>`}
    ${draw(lines.filter(([, field]) => !field.more))}${more.length > 0 && html`<details open=${!fresh}><summary>More limits</summary>${draw(more)}</details>`}
    ${error && html`<${Failure} error=${error} />`}
    <div class="row end"><button type="button" onClick=${closeDialog}>Cancel</button><button class="main" disabled=${state.busy}>${label}</button></div></form>
      <//>`;
}
