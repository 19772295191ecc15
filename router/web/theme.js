// Applies the chosen theme before anything is drawn. A classic script, so that it runs at once.
(() => {
  let theme = null;
  try {
    theme = localStorage.getItem("corral.theme");
  } catch {
    // storage is off: the system's theme it is
  }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
})();
