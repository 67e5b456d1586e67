// At most two runs can be chosen: a third choice replaces the first.
(() => {
  const form = document.getElementById("runs");
  const out = document.getElementById("chosen");
  const button = form.querySelector("button");
  const chosen = [...form.querySelectorAll("input:checked")];
  const show = () => {
    button.disabled = chosen.length === 0;
    out.textContent = ["Choose two runs, or one to compare its engines.", "One run: its engines are compared.", ""][chosen.length];
  };
  form.addEventListener("change", ({ target }) => {
    if (target.checked) chosen.push(target); else chosen.splice(chosen.indexOf(target), 1);
    if (chosen.length > 2) chosen.shift().checked = false;
    show();
  });
  show();
})();
