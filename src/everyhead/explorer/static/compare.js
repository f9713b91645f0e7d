export async function compare(root) {
  root.append("…");
}
