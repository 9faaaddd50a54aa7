(function () {
  var page = document.documentElement, banner = document.getElementById("old");
  function look() {
    var age = Date.now() / 1000 - Number(page.getAttribute("data-written"));
    var old = age > Number(page.getAttribute("data-old"));
    banner.hidden = !old;
    if (old) {
      var minutes = Math.round(age / 60), hours = Math.round(minutes / 60), days = Math.round(hours / 24);
      var words = minutes < 120 ? minutes + " minutes" : hours < 48 ? hours + " hours" : days + " days";
      document.getElementById("age").textContent = words;
    }
  }
  look();
  setInterval(look, 10000);
  // Whoever reads slowly, or by a screen reader, must be able to stop it.
  var hold = document.getElementById("hold");
  if (hold) {
    hold.hidden = false;
    setInterval(function () { if (!hold.querySelector("input").checked) location.reload(); }, 60000);
  }
})();
