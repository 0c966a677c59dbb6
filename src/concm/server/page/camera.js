// The live camera: what it shows is asked about while one looks, and a photo that is taken goes with the answers.
import { attempt, percent, post, say } from "/static/tools.js";
import { ask } from "/static/answers.js";

export function camera(app) {
  const [button, lens, video, live] = ["camera", "lens", "video", "live"].map((id) => document.getElementById(id));
  let stream = null;

  async function open() {
    await attempt(async () => {
      if (!navigator.mediaDevices) throw new Error("The browser gives no camera here: use 127.0.0.1, or https.");
      stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment", width: 640 } });
      video.srcObject = stream;
      lens.hidden = false;
      button.setAttribute("aria-expanded", "true");
      await video.play();
      document.getElementById("shoot").focus();
      watch(stream);
    });
  }

  function close() {
    for (const track of stream ? stream.getTracks() : []) track.stop();
    stream = null;
    lens.hidden = true;
    button.setAttribute("aria-expanded", "false");
    button.focus();
  }

  function frame() {
    const canvas = document.createElement("canvas");
    const side = Math.min(video.videoWidth, video.videoHeight, 448);
    const scale = side / Math.min(video.videoWidth, video.videoHeight);
    canvas.width = Math.round(video.videoWidth * scale);
    canvas.height = Math.round(video.videoHeight * scale);
    canvas.getContext("2d").drawImage(video, 0, 0, canvas.width, canvas.height);
    return new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.9));
  }

  async function watch(mine) {
    while (stream === mine) {
      if (video.videoWidth && !document.hidden) {
        try {
          const form = new FormData();
          form.append("photos", await frame(), "camera.jpg");
          const { predictions } = await post("/api/predict?keep=none&top=2", form);
          const [name, share] = predictions[0].top[0];
          if (stream === mine) live.textContent = predictions[0].unknown ? `unknown (most like ${name})` : `${name}, ${percent(share)}`;
        } catch (error) {
          say(error.message, true);
        }
      }
      await new Promise((done) => setTimeout(done, 700));
    }
  }

  button.addEventListener("click", () => (stream ? close() : open()));
  document.getElementById("lensclose").addEventListener("click", close);
  document.getElementById("shoot").addEventListener("click", async () => {
    const stamp = new Date().toISOString().slice(0, 19).replaceAll(":", "-");
    await ask([new File([await frame()], `camera ${stamp}.jpg`, { type: "image/jpeg" })], app);
  });
}
