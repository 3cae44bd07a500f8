// Run gpuscope in Pyodide: node in_pyodide.mjs <npm package> <packages> <repository> <core> <whole>
//
// The first program needs what PyPI and npm have. The second needs packages of Pyodide's
// distribution, which come from its CDN. Prints what of them could not be had, as JSON.
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [npm, packages, repository, core, whole] = process.argv.slice(2);
const { loadPyodide, version } = await import(pathToFileURL(join(npm, "pyodide.mjs")));
const python = await loadPyodide({
  packageBaseUrl: `https://cdn.jsdelivr.net/pyodide/v${version}/full/`,
});
for (const [place, folder] of [["/packages", packages], ["/gpuscope", repository]]) {
  python.FS.mkdir(place);
  python.mountNodeFS(place, folder);
}
python.runPython(`
import sys
sys.path += ["/packages", "/gpuscope", "/gpuscope/tests", "/gpuscope/lessons", "/gpuscope/lessons/tests"]
`);
python.runPython(core);

const compiled = ["numpy", "pyarrow", "ml-dtypes", "Pillow"];
const silent = { messageCallback: () => {}, errorCallback: () => {} };
const loaded = await python.loadPackage(compiled, silent).catch(() => []);
const names = loaded.map((one) => one.name.toLowerCase());
const lacking = compiled.filter((name) => !names.includes(name.toLowerCase()));
if (!lacking.length) python.runPython(whole);
console.log(JSON.stringify(lacking));
