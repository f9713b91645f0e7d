export async function walk(root) {
  root.append("…");
}
