export function makeLive() {
  return null;
}

export async function live(root) {
  root.append("…");
}
