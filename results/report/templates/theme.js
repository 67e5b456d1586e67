"use strict";
// Theme: the system's until the reader chooses. Storage is refused to some local files, which is fine.
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const remembered = () => { try { return localStorage.getItem("bakeoff-theme"); } catch { return null; } };
  const remember = (theme) => { try { localStorage.setItem("bakeoff-theme", theme); } catch { /* not kept */ } };
  const isDark = () => root.dataset.theme
    ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const name = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  if (["light", "dark"].includes(remembered())) root.dataset.theme = remembered();
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remember(root.dataset.theme);
    name();
  });
  button.hidden = false;
  name();
})();
