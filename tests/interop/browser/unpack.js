// Unpack Chromium and its libraries beside this file; axe.min.js, too.
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { execFileSync } from "node:child_process";
import { brotliDecompressSync } from "node:zlib";

const from = (name) => brotliDecompressSync(readFileSync(`node_modules/@sparticuz/chromium/bin/${name}.br`));
writeFileSync("chromium", from("chromium"), { mode: 0o755 });
for (const name of ["al2023.tar", "swiftshader.tar", "fonts.tar"]) {
  execFileSync("tar", ["-x"], { input: from(name) });
}
mkdirSync("lib", { recursive: true });
copyFileSync("node_modules/axe-core/axe.min.js", "axe.min.js");
